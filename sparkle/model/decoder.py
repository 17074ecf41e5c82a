"""The whole decoder: a pass over rows of several sequences to logits. Knows no requests and no sampling."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from sparkle.kernels import ops
from sparkle.model.cache import SequenceCache
from sparkle.model.config import ModelConfig
from sparkle.model.layer import DecoderLayer
from sparkle.model.layout import PassLayout, kv_cells
from sparkle.model.taps import Taps
from sparkle.model.weights import DecoderWeights


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
        self._layers: list[DecoderLayer] = []
        ranks = dict.fromkeys(config.layer_types, 0)
        for kind, layer in zip(config.layer_types, weights.layers, strict=True):
            self._layers.append(DecoderLayer(config, layer, ranks[kind]))
            ranks[kind] += 1

    @torch.inference_mode()
    def forward(self, batch: PassBatch, cache: SequenceCache, taps: Taps | None = None) -> Tensor:
        """Logits float32 [R, vocab] of `batch.logit_rows`; the cache is moved on in place.

        `taps` takes the outputs of the layers it names.

        Raises ValueError where a page table is too short for its span, or a field has another shape or dtype.
        """
        return self._logits(self._normed(self._through_layers(batch, cache, taps)[batch.logit_rows]))

    @torch.inference_mode()
    def forward_with_hidden(self, batch: PassBatch, cache: SequenceCache) -> tuple[Tensor, Tensor]:
        """The same logits, and what they are made of: all rows after the final norm, [T, hidden]."""
        hidden = self._normed(self._through_layers(batch, cache, None))
        return self._logits(hidden[batch.logit_rows]), hidden

    def _through_layers(self, batch: PassBatch, cache: SequenceCache, taps: Taps | None) -> Tensor:
        layout = pass_layout(self._config, batch, page_tokens=cache.page_tokens)
        hidden = F.embedding(batch.token_ids, self._weights.embedding)
        for number, layer in enumerate(self._layers):
            hidden = layer.forward(hidden, layout, cache)
            if taps is not None:
                taps.take(number, hidden)
        return hidden

    def _normed(self, hidden: Tensor) -> Tensor:
        return ops.rms_norm(hidden, self._weights.norm, eps=self._config.rms_norm_eps)

    def _logits(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, self._weights.lm_head).float()


def pass_layout(config: ModelConfig, batch: PassBatch, *, page_tokens: int) -> PassLayout:
    """What the layers share of this pass. Raises ValueError where a page table is too short for its span."""
    return PassLayout(
        span_starts=batch.span_starts,
        slots=batch.slots,
        contexts=batch.contexts,
        page_tables=batch.page_tables,
        cells=kv_cells(batch.span_starts, batch.contexts, batch.page_tables, page_tokens=page_tokens),
        rotary_table=ops.rotary_table(
            batch.positions,
            theta=config.rope_theta,
            rotary_dim=config.rotary_dim,
            sections=config.mrope_section,
        ),
    )
