"""A layer of the DFlash2 draft model: attention and MLP between two-tap convolutions. Knows no tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from sparkle.kernels import ops
from sparkle.model.dflash_cache import DFlashCache
from sparkle.model.dflash_config import DFlashConfig
from sparkle.model.dflash_weights import SIDES, TAPS, ConvolutionWeights, DFlashLayerWeights


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """What all layers of one draft share: S blocks of `width` rows, one after another."""

    slots: Tensor  # int64 [S], negative for an unused place
    contexts: Tensor  # int64 [S], tokens in each ring so far
    cells: Tensor  # int64 [S · width], where the cache keeps the block's own rows
    rotary_table: Tensor  # float32 [2, S · width, lanes]
    width: int


class DFlashLayer:
    """Norm, convolve, attend, convolve, add; norm, convolve, multiply each token, convolve, add.

    `number` counts the layers from 0.
    """

    def __init__(self, config: DFlashConfig, weights: DFlashLayerWeights[Tensor], number: int) -> None:
        self._config = config
        self._weights = weights
        self._number = number

    def extend(self, context: Tensor, table: Tensor, cells: Tensor, cache: DFlashCache) -> None:
        """Store the keys and values of rows of the context [T, hidden]."""
        # attention's keys and values alone: all that a row of the context has
        key, value = F.linear(context, self._weights.qkv[self._config.query_size :]).chunk(2, dim=1)
        cache.write(self._number, self._keys(key, table), self._heads(value), cells)

    def forward(self, hidden: Tensor, block: Block, cache: DFlashCache) -> Tensor:
        """Residuals [S · W, hidden] to the same."""
        weights, eps = self._weights, self._config.rms_norm_eps
        x = ops.rms_norm(hidden, weights.input_norm, eps=eps)
        before, behind = _convolutions(x, weights.attention_conv, block.width)
        x = self._attend(ops.block_conv(x, before), block, cache)
        hidden = hidden + ops.block_conv(x, behind)
        x = ops.rms_norm(hidden, weights.mlp_norm, eps=eps)
        before, behind = _convolutions(x, weights.mlp_conv, block.width)
        x = ops.silu_mul(F.linear(ops.block_conv(x, before), weights.gate_up))
        return hidden + ops.block_conv(F.linear(x, weights.down), behind)

    def _attend(self, x: Tensor, block: Block, cache: DFlashCache) -> Tensor:
        config, weights = self._config, self._weights
        sizes = (config.query_size, config.kv_size, config.kv_size)
        query, key, value = F.linear(x, weights.qkv).split_with_sizes(sizes, dim=1)
        query = ops.rms_norm(self._heads(query), weights.query_norm, eps=config.rms_norm_eps)
        query = ops.rotary(query, block.rotary_table)
        cache.write(self._number, self._keys(key, block.rotary_table), self._heads(value), block.cells)
        attended = ops.ring_attention(
            rings_of(query, block, cache, self._number, window=config.window), scale=config.head_dim**-0.5
        )
        return F.linear(attended.flatten(1), weights.out)

    def _keys(self, key: Tensor, table: Tensor) -> Tensor:
        normed = ops.rms_norm(self._heads(key), self._weights.key_norm, eps=self._config.rms_norm_eps)
        return ops.rotary(normed, table)

    def _heads(self, x: Tensor) -> Tensor:
        """[T, heads · D] as [T, heads, D]."""
        width = self._config.head_dim
        return x.reshape(x.shape[0], x.shape[1] // width, width)


def rings_of(query: Tensor, block: Block, cache: DFlashCache, layer: int, *, window: int) -> ops.Rings:
    """What the block's rows [S · W, H, D] see in a layer of the cache, their own keys and values with it."""
    return ops.Rings(
        query=query,
        keys=cache.keys[layer],
        values=cache.values[layer],
        slots=block.slots,
        contexts=block.contexts,
        window=window,
        width=block.width,
    )


def taps_of(dynamic: Tensor, base: Tensor, width: int) -> tuple[ops.BlockTaps, ops.BlockTaps]:
    """The convolutions in front of what they wrap and behind it.

    dynamic float32 [P, S · W, sides · taps · G], in parts to be added; base float32 [sides, taps, hidden].
    """
    parts, rows, _ = dynamic.shape
    front, behind = dynamic.view(parts, rows, SIDES, TAPS, -1).unbind(2)
    return ops.BlockTaps(base[0], front, width), ops.BlockTaps(base[1], behind, width)


def _convolutions(
    x: Tensor, weights: ConvolutionWeights[Tensor], width: int
) -> tuple[ops.BlockTaps, ops.BlockTaps]:
    """Made of what comes in: x [S · W, hidden]."""
    return taps_of(F.linear(x, weights.dynamic)[None], weights.base, width)
