"""The checkpoint's own draft head with FP8 weights, cache and products. Knows no requests.

The same formula as mtp.Mtp; as the FP8 decoder it computes on the device of its weights, and what it does to
a few rows looks at no tensor's values, so that a graph can hold a whole chain.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from sparkle.kernels import ops
from sparkle.model.config import LayerType, ModelConfig
from sparkle.model.fp8_batch import PromptBatch, VerifyBatch
from sparkle.model.fp8_cache import Fp8Cache
from sparkle.model.fp8_layer import Fp8Layer
from sparkle.model.fp8_weights import Fp8DecoderWeights
from sparkle.model.mtp_chain import ChainStart, verify_rows
from sparkle.model.side_stream import SideStream


class Fp8Mtp:
    """Keeps its keys and values in the last layer of the decoder's cache, in the decoder's pages."""

    def __init__(self, config: ModelConfig, weights: Fp8DecoderWeights) -> None:
        assert weights.mtp is not None, "a checkpoint without a draft head has no MTP"
        self._config = config
        self._decoder = weights
        self._weights = weights.mtp
        rank = config.layer_types.count(LayerType.FULL)
        self._layer = Fp8Layer(config, weights.mtp.layer, rank, SideStream(weights.embedding.device))

    @torch.inference_mode()
    def read(self, batch: VerifyBatch | PromptBatch, hidden: Tensor, cache: Fp8Cache) -> Tensor:
        """The head's output bfloat16 [T, hidden] of all rows; those outside the spans hold anything.

        See mtp.Mtp.read; `hidden` is bfloat16 [T, hidden], as `Fp8Decoder.verify_with_hidden` gives it.
        """
        config, weights = self._config, self._weights
        embedded = F.embedding(batch.token_ids, self._decoder.embedding)
        eps = config.rms_norm_eps
        _, token = ops.add_rms_norm_quantise(embedded, None, weights.embedding_norm, eps=eps)
        _, before = ops.add_rms_norm_quantise(hidden, None, weights.hidden_norm, eps=eps)
        table = ops.rotary_table(
            batch.positions,
            theta=config.rope_theta,
            rotary_dim=config.rotary_dim,
            sections=config.mrope_section,
        )
        x = ops.fp8_linear(_beside(token, before), weights.joined)
        _, x, addend = self._layer.forward(x, None, table, batch, cache)
        return ops.add_rms_norm_both(x, addend, weights.norm, eps=eps)[1]

    @torch.inference_mode()
    def logits(self, outputs: Tensor) -> Tensor:
        """Float32 [R, vocab], of the token after next; outputs bfloat16 [R, hidden]."""
        return ops.lm_head_logits(
            ops.quantise_rows(outputs), self._decoder.lm_head, vocabulary=self._config.vocab_size
        )

    @torch.inference_mode()
    def draft(self, start: ChainStart, cache: Fp8Cache, *, count: int) -> Tensor:
        """The likeliest tokens one after another, of equal ones the lowest: int64 [S, count].

        Guesses of an unused place, and those past the pages that a sequence holds, are any tokens.
        """
        outputs = start.outputs
        tokens = [self._likeliest(outputs)]
        for step in range(1, count):
            rows = verify_rows(start, tokens[-1], step, page_tokens=cache.page_tokens)
            outputs = self.read(rows, outputs, cache)
            tokens.append(self._likeliest(outputs))
        return torch.stack(tokens, dim=1)

    def _likeliest(self, outputs: Tensor) -> Tensor:
        vocabulary = self._config.vocab_size
        return ops.lm_head_greedy(ops.quantise_rows(outputs), self._decoder.lm_head, vocabulary=vocabulary)[0]


def _beside(first: ops.Fp8Rows, second: ops.Fp8Rows) -> ops.Fp8Rows:
    """Two activations of the same rows as one, the second's columns behind the first's."""
    # torch joins bytes where it joins no e4m3
    values = torch.cat([part.values.view(torch.uint8) for part in (first, second)], dim=1)
    scales = torch.cat([part.scales.t() for part in (first, second)])
    return ops.Fp8Rows(values.view(torch.float8_e4m3fn), scales.t())
