"""Gated full attention with partial rotary positions over a paged cache. Knows no other layer."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from sparkle.kernels import ops
from sparkle.model.config import ModelConfig
from sparkle.model.layout import PassLayout
from sparkle.model.weights import AttentionWeights


class GatedAttention:
    """Norm per head, rotate, attend, scale each output by sigmoid of its gate, project."""

    def __init__(self, config: ModelConfig, weights: AttentionWeights) -> None:
        self._config = config
        self._weights = weights
        query_size = config.num_heads * config.head_dim
        kv_size = config.num_kv_heads * config.head_dim
        self._sizes = (query_size, kv_size, kv_size, query_size)

    def forward(self, x: Tensor, layout: PassLayout, *, key_pages: Tensor, value_pages: Tensor) -> Tensor:
        """x [T, hidden] to [T, hidden]; stores the rows' keys and values in the pages of this layer."""
        config, weights = self._config, self._weights
        query, key, value, gate = F.linear(x, weights.qkvg).split_with_sizes(self._sizes, dim=1)
        query = query.view(-1, config.num_heads, config.head_dim)
        key = key.view(-1, config.num_kv_heads, config.head_dim)
        value = value.view(-1, config.num_kv_heads, config.head_dim)
        query = ops.rms_norm(query, weights.query_norm, eps=config.rms_norm_eps)
        key = ops.rms_norm(key, weights.key_norm, eps=config.rms_norm_eps)
        query, key = (ops.rotary(part, layout.rotary_table) for part in (query, key))
        ops.write_kv(key, value, key_pages, value_pages, layout.cells)
        attended = ops.paged_attention(
            query,
            key_pages,
            value_pages,
            layout.page_tables,
            layout.span_starts,
            layout.contexts,
            scale=config.head_dim**-0.5,
        )
        return F.linear(attended.flatten(1) * torch.sigmoid(gate), weights.out)
