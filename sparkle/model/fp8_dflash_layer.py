"""A layer of the DFlash2 draft model with FP8 products. Knows no tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sparkle.kernels import ops
from sparkle.model.dflash_cache import DFlashCache
from sparkle.model.dflash_config import DFlashConfig
from sparkle.model.dflash_layer import Block, rings_of, taps_of
from sparkle.model.dflash_weights import ConvolutionWeights, DFlashLayerWeights


@dataclass(frozen=True, slots=True)
class Unadded:
    """What a residual still lacks: a product's parts, float [P, S · W, hidden], to be added and convolved."""

    parts: Tensor
    taps: ops.BlockTaps


class Fp8DFlashLayer:
    """The same formula as `dflash_layer.DFlashLayer`; convolutions and norms are parts of other kernels."""

    def __init__(self, config: DFlashConfig, weights: DFlashLayerWeights[ops.Fp8Blocks], number: int) -> None:
        self._config = config
        self._weights = weights
        self._number = number

    def forward(
        self, hidden: Tensor, unadded: Unadded | None, block: Block, cache: DFlashCache
    ) -> tuple[Tensor, Unadded]:
        """Residuals bfloat16 [S · W, hidden] and what they lack, to the same."""
        weights, eps = self._weights, self._config.rms_norm_eps
        hidden, normed, x = add_and_norm(hidden, unadded, weights.input_norm, eps=eps)
        before, behind = _convolutions(x, weights.attention_conv, block.width)
        attended = self._attend(ops.block_conv_quantise(normed, before), block, cache)
        unadded = Unadded(ops.fp8_linear_parts(attended, weights.out), behind)
        hidden, normed, x = add_and_norm(hidden, unadded, weights.mlp_norm, eps=eps)
        before, behind = _convolutions(x, weights.mlp_conv, block.width)
        inner = ops.gate_up_silu_quantise(ops.block_conv_quantise(normed, before), weights.gate_up)
        return hidden, Unadded(ops.fp8_linear_parts(inner, weights.down), behind)

    def _attend(self, x: ops.Fp8Rows, block: Block, cache: DFlashCache) -> ops.Fp8Rows:
        config, weights = self._config, self._weights
        sizes = (config.query_size, config.kv_size, config.kv_size)
        parts = ops.fp8_linear(x, weights.qkv).split_with_sizes(sizes, dim=1)
        query, key, value = (part.view(part.shape[0], -1, config.head_dim) for part in parts)
        query = ops.qkv_write(
            query,
            key,
            value,
            weights.query_norm,
            weights.key_norm,
            block.rotary_table,
            cache.keys[self._number],
            cache.values[self._number],
            block.cells,
            eps=config.rms_norm_eps,
        )
        rings = rings_of(query, block, cache, self._number, window=config.window)
        return ops.ring_attention_quantised(rings, scale=config.head_dim**-0.5)


def add_and_norm(
    hidden: Tensor, unadded: Unadded | None, norm: Tensor, *, eps: float
) -> tuple[Tensor, Tensor, ops.Fp8Rows]:
    """The whole residuals, and these normed: in bfloat16 and quantised."""
    # two kernels: one program a row, as a norm needs, takes longer over all parts than both of them
    if unadded is not None:
        hidden = ops.block_conv_add(hidden, unadded.parts, unadded.taps)
    return ops.add_rms_norm_both(hidden, None, norm, eps=eps)


def _convolutions(
    x: ops.Fp8Rows, weights: ConvolutionWeights[ops.Fp8Blocks], width: int
) -> tuple[ops.BlockTaps, ops.BlockTaps]:
    """Made of what comes in, [S · W, hidden]."""
    return taps_of(ops.fp8_linear_parts(x, weights.dynamic, dtype=torch.float32), weights.base, width)
