"""Gated full attention with FP8 products and cache: few new tokens, or prompts. Knows no other layer."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sparkle.kernels import ops
from sparkle.model.config import ModelConfig
from sparkle.model.fp8_batch import Pieces, PromptBatch, VerifyBatch
from sparkle.model.fp8_weights import Fp8AttentionWeights


class Fp8Attention:
    """The same formula as `attention.GatedAttention`."""

    def __init__(self, config: ModelConfig, weights: Fp8AttentionWeights) -> None:
        self._config = config
        self._weights = weights
        self._scale = config.head_dim**-0.5
        query, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        self._sizes = (query, kv, kv, query)
        self._kv = weights.qkvg.rows(query, query + 2 * kv)

    def forward(
        self,
        x: ops.Fp8Rows,
        table: Tensor,
        batch: VerifyBatch | PromptBatch,
        key_pages: Tensor,
        value_pages: Tensor,
    ) -> Tensor:
        """Normed rows [T, hidden], table of ops.rotary_table; float parts [P, T, hidden] to be added."""
        runs = _runs_of(batch)
        query, gate = self._project(x, table, batch.cells, key_pages, value_pages)
        if runs is None:
            assert isinstance(batch, PromptBatch), "a verify pass is runs"
            attended = self._read(query, gate, batch, key_pages, value_pages)
        else:
            attended = self._verify(query, gate, runs, key_pages, value_pages)
        return ops.fp8_linear_parts(attended, self._weights.out)

    def write(
        self, x: ops.Fp8Rows, table: Tensor, cells: Tensor, key_pages: Tensor, value_pages: Tensor
    ) -> None:
        """Leave what `forward` leaves of these rows in their pages, and nothing else."""
        key, value = ops.fp8_linear(x, self._kv).chunk(2, dim=1)
        no_query = key[:, :0]
        self._turn_and_write((no_query, key, value), table, cells, key_pages, value_pages)

    def _verify(
        self, query: Tensor, gate: Tensor, runs: Pieces, key_pages: Tensor, value_pages: Tensor
    ) -> ops.Fp8Rows:
        return ops.verify_attention_quantised(
            query,
            key_pages,
            value_pages,
            runs.page_tables,
            runs.starts,
            runs.contexts,
            width=runs.width,
            scale=self._scale,
            gate=gate,
        )

    def _read(
        self, query: Tensor, gate: Tensor, batch: PromptBatch, key_pages: Tensor, value_pages: Tensor
    ) -> ops.Fp8Rows:
        spans = query.split_with_sizes(batch.lengths)
        results = [
            ops.prefill_attention(
                rows, key_pages, value_pages, batch.page_tables[span], context=context, scale=self._scale
            )
            for span, (rows, context) in enumerate(zip(spans, batch.contexts, strict=True))
        ]
        attended = results[0] if len(results) == 1 else torch.cat(results)
        return ops.sigmoid_mul_quantise(attended, gate)

    def _project(
        self, x: ops.Fp8Rows, table: Tensor, cells: Tensor, key_pages: Tensor, value_pages: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Rotated queries and gates [T, H, D]; keys and values go to their pages."""
        *qkv, gate = ops.fp8_linear(x, self._weights.qkvg).split_with_sizes(self._sizes, dim=1)
        query = self._turn_and_write(qkv, table, cells, key_pages, value_pages)
        return query, gate.view(query.shape)

    def _turn_and_write(
        self, qkv: Sequence[Tensor], table: Tensor, cells: Tensor, key_pages: Tensor, value_pages: Tensor
    ) -> Tensor:
        """Rotated queries [T, H, D] of columns as the product gives them."""
        config, weights = self._config, self._weights
        rows, dim = cells.shape[0], config.head_dim
        query, key, value = (part.view(rows, part.shape[1] // dim, dim) for part in qkv)
        return ops.qkv_write(
            query,
            key,
            value,
            weights.query_norm,
            weights.key_norm,
            table,
            key_pages,
            value_pages,
            cells,
            eps=config.rms_norm_eps,
        )


def _runs_of(batch: VerifyBatch | PromptBatch) -> Pieces | None:
    """Short runs of rows; None for whole prompts."""
    if isinstance(batch, PromptBatch):
        return batch.pieces
    return Pieces(
        starts=batch.span_starts,
        contexts=batch.contexts,
        page_tables=batch.page_tables,
        width=batch.width,
    )
