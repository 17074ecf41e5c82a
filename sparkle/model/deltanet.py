"""Gated DeltaNet: linear attention with a decaying state that each token corrects. Knows no other layer."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from sparkle.kernels import ops
from sparkle.model.config import ModelConfig
from sparkle.model.layout import PassLayout
from sparkle.model.weights import DeltaNetWeights


class GatedDeltaNet:
    """Convolve, apply the gated delta rule, norm and gate each head, project."""

    def __init__(self, config: ModelConfig, weights: DeltaNetWeights) -> None:
        self._config = config
        self._weights = weights
        self._sizes = (config.linear_key_size, config.linear_key_size, config.linear_value_size)

    def forward(self, x: Tensor, layout: PassLayout, *, states: Tensor, columns: Tensor) -> Tensor:
        """x [T, hidden] to [T, hidden]; moves the sequences' states and columns of this layer on."""
        config, weights = self._config, self._weights
        qkv, gate = F.linear(x, weights.qkvz).tensor_split((config.conv_channels,), dim=1)
        strength, decay = F.linear(x, weights.ba).float().chunk(2, dim=1)
        qkv = ops.causal_conv(qkv, weights.conv, columns, layout.span_starts, layout.slots)
        query, key, value = qkv.split_with_sizes(self._sizes, dim=1)
        mixed = ops.delta_rule(
            query.view(-1, config.linear_num_key_heads, config.linear_key_dim),
            key.view(-1, config.linear_num_key_heads, config.linear_key_dim),
            value.view(-1, config.linear_num_value_heads, config.linear_value_dim),
            -weights.a_log.exp() * F.softplus(decay + weights.dt_bias),
            strength.sigmoid(),
            states,
            layout.span_starts,
            layout.slots,
        )
        gate = gate.view(mixed.shape)
        normed = ops.gated_rms_norm(mixed, gate, weights.norm, eps=config.rms_norm_eps)
        return F.linear(normed.flatten(1), weights.out)
