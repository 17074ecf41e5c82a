"""The checkpoint's own draft head with FP8 weights, cache and products. Knows no requests.

The same formula as mtp.Mtp; as the FP8 decoder it computes on the device of its weights, and what it does to
a few rows looks at no tensor's values, so that a graph can hold a whole chain.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sparkle.kernels import ops
from sparkle.model.config import LayerType, ModelConfig
from sparkle.model.fp8_batch import PromptBatch, VerifyBatch
from sparkle.model.fp8_cache import Fp8Cache
from sparkle.model.fp8_layer import Fp8Layer
from sparkle.model.fp8_weights import Fp8DecoderWeights
from sparkle.model.mtp_chain import ChainStart, chain_rows, last_rows, last_rows_alone
from sparkle.model.side_stream import SideStream


class Fp8Mtp:
    """Keeps its keys and values in the last layer of the decoder's cache, in the decoder's pages.

    Only the first `draft_vocab_size` tokens are ever guessed, all where it is None: the lower a token's
    number, the more frequent it is, and the output product is most of what a guess costs.
    """

    def __init__(
        self, config: ModelConfig, weights: Fp8DecoderWeights, *, draft_vocab_size: int | None = None
    ) -> None:
        assert weights.mtp is not None, "a checkpoint without a draft head has no MTP"
        self._config = config
        self._embedding = weights.embedding
        self._vocabulary = draft_vocab_size or config.vocab_size
        self._lm_head = weights.lm_head.whole_blocks(self._vocabulary)
        self._weights = weights.mtp
        rank = config.layer_types.count(LayerType.FULL)
        self._side = SideStream(weights.embedding.device)
        self._layer = Fp8Layer(config, weights.mtp.layer, rank, self._side)

    @torch.inference_mode()
    def read(self, batch: VerifyBatch | PromptBatch, hidden: Tensor, cache: Fp8Cache) -> Tensor:
        """The head's output bfloat16 [T, hidden] of all rows; those outside the spans hold anything.

        See mtp.Mtp.read; `hidden` is bfloat16 [T, hidden], as `Fp8Decoder.verify_with_hidden` gives it.
        """
        return self._read(batch, self._normed(hidden), cache)[0]

    @torch.inference_mode()
    def follow(
        self,
        batch: VerifyBatch | PromptBatch,
        hidden: Tensor,
        cache: Fp8Cache,
        *,
        contexts: Tensor,
        kept: Tensor,
    ) -> Tensor:
        """See mtp.Mtp.follow. Of a prompt's whole chunks no row but the last is more than keys and values."""
        if isinstance(batch, VerifyBatch) or batch.pieces is not None:
            return self.read(batch, hidden, cache).index_select(0, last_rows(batch, kept))
        x = self._joined(batch, self._normed(hidden))
        self._layer.write(x, None, self._table(batch), batch, cache)
        last, alone = last_rows_alone(batch, contexts=contexts, kept=kept)
        return self._through(x.index_select(0, last), alone, cache)[0][: kept.shape[0]]

    @torch.inference_mode()
    def draft(self, start: ChainStart, cache: Fp8Cache, *, count: int) -> Tensor:
        """The likeliest tokens one after another, of equal ones the lowest: int64 [S, count].

        Guesses of an unused place, and those past the pages that a sequence holds, are any tokens.
        """
        outputs, x = start.outputs, ops.quantise_rows(start.outputs)
        if count == 1:
            return self._likeliest(x)[:, None]
        # what does not depend on a guess is computed beside its output product
        rows = self._side.start(lambda: chain_rows(start, steps=count - 1, page_tokens=cache.page_tokens))
        tokens: list[Tensor] = []
        for step in range(1, count):
            before = self._side.start(lambda: self._normed(outputs))  # noqa: B023 it runs at once
            tokens.append(self._likeliest(x))
            batch = rows.wait().batch(step, tokens[-1])
            outputs, x = self._read(batch, before.wait(), cache)
        return torch.stack([*tokens, self._likeliest(x)], dim=1)

    def _read(
        self, batch: VerifyBatch | PromptBatch, before: ops.Fp8Rows, cache: Fp8Cache
    ) -> tuple[Tensor, ops.Fp8Rows]:
        """The output of `read` behind `_normed` rows, and the same quantised."""
        return self._through(self._joined(batch, before), batch, cache)

    def _joined(self, batch: VerifyBatch | PromptBatch, before: ops.Fp8Rows) -> Tensor:
        """What the layer is given: the rows' tokens beside `_normed` rows, bfloat16 [T, hidden]."""
        embedded = self._embedding[batch.token_ids]
        norm = self._weights.embedding_norm
        _, token = ops.add_rms_norm_quantise(embedded, None, norm, eps=self._config.rms_norm_eps)
        return ops.fp8_linear(_beside(token, before), self._weights.joined)

    def _through(
        self, x: Tensor, batch: VerifyBatch | PromptBatch, cache: Fp8Cache
    ) -> tuple[Tensor, ops.Fp8Rows]:
        """The output behind what the layer is given, and the same quantised."""
        _, x, addend = self._layer.forward(x, None, self._table(batch), batch, cache)
        _, outputs, quantised = ops.add_rms_norm_both(
            x, addend, self._weights.norm, eps=self._config.rms_norm_eps
        )
        return outputs, quantised

    def _table(self, batch: VerifyBatch | PromptBatch) -> Tensor:
        config = self._config
        return ops.rotary_table(
            batch.positions,
            theta=config.rope_theta,
            rotary_dim=config.rotary_dim,
            sections=config.mrope_section,
        )

    def _normed(self, hidden: Tensor) -> ops.Fp8Rows:
        """The decoder's or the head's output as the joined product takes it."""
        eps = self._config.rms_norm_eps
        return ops.add_rms_norm_quantise(hidden, None, self._weights.hidden_norm, eps=eps)[1]

    def _likeliest(self, x: ops.Fp8Rows) -> Tensor:
        return ops.lm_head_greedy(x, self._lm_head, vocabulary=self._vocabulary)[0]


def _beside(first: ops.Fp8Rows, second: ops.Fp8Rows) -> ops.Fp8Rows:
    """Two activations of the same rows as one, the second's columns behind the first's."""
    # torch joins bytes where it joins no e4m3
    values = torch.cat([part.values.view(torch.uint8) for part in (first, second)], dim=1)
    scales = torch.cat([part.scales.t() for part in (first, second)])
    return ops.Fp8Rows(values.view(torch.float8_e4m3fn), scales.t())
