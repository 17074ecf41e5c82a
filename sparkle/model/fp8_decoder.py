"""The whole decoder with FP8 weights, cache and products: rows to logits. Knows no requests and no sampling.

Every step computes on the device of the weights: on a GPU by the kernels, elsewhere by their references. The
rows of a sequence are read in one of two ways: `verify` for a few new tokens, some of them guesses, without
one look at a tensor's values, so that a graph can hold it; `read` for chunks of prompts.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sparkle.kernels import ops
from sparkle.model.config import ModelConfig
from sparkle.model.fp8_batch import PromptBatch, VerifyBatch
from sparkle.model.fp8_cache import Fp8Cache
from sparkle.model.fp8_layer import Fp8Layer
from sparkle.model.fp8_weights import Fp8DecoderWeights
from sparkle.model.side_stream import SideStream
from sparkle.model.taps import Taps


class Fp8Decoder:
    """Moves an `Fp8Cache` on in place; residuals are bfloat16, sums float32."""

    def __init__(self, config: ModelConfig, weights: Fp8DecoderWeights) -> None:
        self._config = config
        self._weights = weights
        side = SideStream(weights.embedding.device)
        self._layers: list[Fp8Layer] = []
        ranks = dict.fromkeys(config.layer_types, 0)
        for kind, layer in zip(config.layer_types, weights.layers, strict=True):
            self._layers.append(Fp8Layer(config, layer, ranks[kind], side))
            ranks[kind] += 1

    @torch.inference_mode()
    def verify(self, batch: VerifyBatch, cache: Fp8Cache, taps: Taps | None = None) -> Tensor:
        """Logits float32 [T, vocab]; rows outside the spans hold anything.

        `taps` takes the outputs of the layers it names, for all rows or some.

        A sequence's new tokens enter its DeltaNet states only with the next pass, which says in `accepted`
        how many of them are kept; its pages hold them from now on, and are written over where they are not.
        """
        hidden, addend = self._through_layers(batch, cache, taps)
        return self._logits(hidden, addend)

    @torch.inference_mode()
    def read(self, batch: PromptBatch, cache: Fp8Cache, taps: Taps | None = None) -> Tensor:
        """Logits float32 [R, vocab] of `batch.logit_rows`. The slots' windows must be folded in before.

        `taps` as in `verify`.
        """
        last = len(self._layers) - 1
        if taps is not None and last in taps:
            hidden, addend = self._through_layers(batch, cache, taps)
            return self._logits(*_rows_of(hidden, addend, batch.logit_rows))
        whole, hidden, addend = self._layers[last].read_last(
            *self._up_to_last(batch, cache, taps), batch, cache
        )
        if taps is not None:
            taps.take(last - 1, whole)
        return self._logits(hidden, addend)

    @torch.inference_mode()
    def verify_with_hidden(self, batch: VerifyBatch, cache: Fp8Cache) -> tuple[Tensor, Tensor]:
        """The logits of `verify`, to the bit, and the rows after the final norm, bfloat16 [T, hidden]."""
        weights, config = self._weights, self._config
        hidden, addend = self._through_layers(batch, cache, None)
        _, normed, x = ops.add_rms_norm_both(hidden, addend, weights.norm, eps=config.rms_norm_eps)
        return ops.lm_head_logits(x, weights.lm_head, vocabulary=config.vocab_size), normed

    @torch.inference_mode()
    def read_with_hidden(self, batch: PromptBatch, cache: Fp8Cache) -> tuple[Tensor, Tensor]:
        """The logits of `read` and all rows after the final norm, bfloat16 [T, hidden]."""
        hidden, addend = self._through_layers(batch, cache, None)
        logits = self._logits(*_rows_of(hidden, addend, batch.logit_rows))
        eps = self._config.rms_norm_eps
        return logits, ops.add_rms_norm_both(hidden, addend, self._weights.norm, eps=eps)[1]

    @torch.inference_mode()
    def fold(self, slots: Tensor, accepted: Tensor, cache: Fp8Cache) -> None:
        """Add the accepted tokens of the slots' windows to their states, int64 [S] both."""
        for layer in self._layers:
            layer.fold(slots, accepted, cache)

    def _through_layers(
        self, batch: VerifyBatch | PromptBatch, cache: Fp8Cache, taps: Taps | None
    ) -> tuple[Tensor, Tensor]:
        """The residuals [T, hidden] before the last product's parts [P, T, hidden] are added, and those."""
        last = len(self._layers) - 1
        whole, hidden, addend = self._layers[last].forward(
            *self._up_to_last(batch, cache, taps), batch, cache
        )
        if taps is not None:
            taps.take(last - 1, whole)
        if taps is not None and last in taps:
            whole, _ = ops.add_rms_norm_quantise(
                hidden, addend, self._weights.norm, eps=self._config.rms_norm_eps
            )
            taps.take(last, whole)
        return hidden, addend

    def _up_to_last(
        self, batch: VerifyBatch | PromptBatch, cache: Fp8Cache, taps: Taps | None
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        """What the last layer is given: residuals, parts still to be added, the table of ops.rotary_table."""
        config = self._config
        table = ops.rotary_table(
            batch.positions,
            theta=config.rope_theta,
            rotary_dim=config.rotary_dim,
            sections=config.mrope_section,
        )
        # by F.embedding up to 16 rows take six times as long
        hidden = self._weights.embedding[batch.token_ids]
        addend: Tensor | None = None
        for number, layer in enumerate(self._layers[:-1]):
            whole, hidden, addend = layer.forward(hidden, addend, table, batch, cache)
            if taps is not None:
                taps.take(number - 1, whole)
        return hidden, addend, table

    def _logits(self, hidden: Tensor, addend: Tensor) -> Tensor:
        weights, config = self._weights, self._config
        _, x = ops.add_rms_norm_quantise(hidden, addend, weights.norm, eps=config.rms_norm_eps)
        return ops.lm_head_logits(x, weights.lm_head, vocabulary=config.vocab_size)


def _rows_of(hidden: Tensor, addend: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    return hidden.index_select(0, rows), addend.index_select(1, rows)
