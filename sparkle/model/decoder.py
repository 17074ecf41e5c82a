"""The whole decoder: a pass over rows of several sequences to logits. Knows no requests and no sampling."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from sparkle.kernels import ops
from sparkle.model.attention import GatedAttention
from sparkle.model.cache import SequenceCache
from sparkle.model.config import ModelConfig
from sparkle.model.deltanet import GatedDeltaNet
from sparkle.model.layout import PassLayout, kv_cells
from sparkle.model.taps import Taps
from sparkle.model.weights import AttentionWeights, DecoderWeights, LayerWeights


@dataclass(frozen=True, slots=True, kw_only=True)
class PassBatch:
    """All spans of a pass, one after another: T tokens of S sequences, each sequence at most once."""

    token_ids: Tensor  # int64 [T]
    positions: Tensor  # int64 [3, T], time, height, width; text has three equal rows
    span_starts: Tensor  # int64 [S+1], offsets into T, from 0 to T
    slots: Tensor  # int64 [S], all different
    contexts: Tensor  # int64 [S], tokens of each sequence computed before this pass
    page_tables: Tensor  # int32 [S, max_pages], -1 padded
    logit_rows: Tensor  # int64 [R], rows of T whose logits are wanted


class Decoder:
    """Computes on the device and in the dtype of its weights; the cache must have the same."""

    def __init__(self, config: ModelConfig, weights: DecoderWeights) -> None:
        self._config = config
        self._weights = weights
        self._layers: list[_Layer] = []
        ranks = dict.fromkeys(config.layer_types, 0)
        for kind, layer in zip(config.layer_types, weights.layers, strict=True):
            self._layers.append(_Layer(config, layer, ranks[kind]))
            ranks[kind] += 1

    @torch.inference_mode()
    def forward(self, batch: PassBatch, cache: SequenceCache, taps: Taps | None = None) -> Tensor:
        """Logits float32 [R, vocab] of `batch.logit_rows`; the cache is moved on in place.

        `taps` takes the outputs of the layers it names.

        Raises ValueError where a page table is too short for its span, or a field has another shape or dtype.
        """
        config, weights = self._config, self._weights
        layout = PassLayout(
            span_starts=batch.span_starts,
            slots=batch.slots,
            contexts=batch.contexts,
            page_tables=batch.page_tables,
            cells=kv_cells(
                batch.span_starts, batch.contexts, batch.page_tables, page_tokens=cache.page_tokens
            ),
            rotary_table=ops.rotary_table(
                batch.positions,
                theta=config.rope_theta,
                rotary_dim=config.rotary_dim,
                sections=config.mrope_section,
            ),
        )
        hidden = F.embedding(batch.token_ids, weights.embedding)
        for number, layer in enumerate(self._layers):
            hidden = layer.forward(hidden, layout, cache)
            if taps is not None:
                taps.take(number, hidden)
        wanted = ops.rms_norm(hidden[batch.logit_rows], weights.norm, eps=config.rms_norm_eps)
        return F.linear(wanted, weights.lm_head).float()


class _Layer:
    """Norm, mix the tokens, add; norm, multiply each token, add. `rank` counts the layers of its kind."""

    def __init__(self, config: ModelConfig, weights: LayerWeights, rank: int) -> None:
        self._eps = config.rms_norm_eps
        self._weights = weights
        self._rank = rank
        self._mixer = (
            GatedAttention(config, weights.mixer)
            if isinstance(weights.mixer, AttentionWeights)
            else GatedDeltaNet(config, weights.mixer)
        )

    def forward(self, hidden: Tensor, layout: PassLayout, cache: SequenceCache) -> Tensor:
        weights = self._weights
        normed = ops.rms_norm(hidden, weights.input_norm, eps=self._eps)
        hidden = hidden + self._mix(normed, layout, cache)
        normed = ops.rms_norm(hidden, weights.mlp_norm, eps=self._eps)
        return hidden + F.linear(ops.silu_mul(F.linear(normed, weights.gate_up)), weights.down)

    def _mix(self, x: Tensor, layout: PassLayout, cache: SequenceCache) -> Tensor:
        rank = self._rank
        if isinstance(self._mixer, GatedAttention):
            return self._mixer.forward(x, layout, key_pages=cache.keys[rank], value_pages=cache.values[rank])
        return self._mixer.forward(x, layout, states=cache.states[rank], columns=cache.columns[rank])
