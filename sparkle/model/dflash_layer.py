"""A layer of the DFlash2 draft model: attention and MLP between two-tap convolutions. Knows no tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from sparkle.kernels import ops
from sparkle.model.dflash_cache import DFlashCache
from sparkle.model.dflash_config import DFlashConfig
from sparkle.model.dflash_weights import SIDES, TAPS, ConvolutionWeights, DFlashLayerWeights
from sparkle.model.matrix import gated_product, product, rows_from


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """What all layers of one draft share: S blocks of W rows, one after another."""

    slots: Tensor  # int64 [S], negative for an unused place
    mask: Tensor  # bool [S, 1, W, window + W]: the ring's cells and the block's own rows that a row sees
    rotary_table: Tensor  # float32 [2, S · W, lanes]


class DFlashLayer:
    """Norm, convolve, attend, convolve, add; norm, convolve, multiply each token, convolve, add.

    `number` counts the layers from 0.
    """

    def __init__(self, config: DFlashConfig, weights: DFlashLayerWeights, number: int) -> None:
        self._config = config
        self._weights = weights
        self._number = number
        # attention's keys and values alone: all that a row of the context has
        self._kv = rows_from(weights.qkv, config.query_size)
        self._attention_conv = _Convolution(weights.attention_conv, config.conv_groups)
        self._mlp_conv = _Convolution(weights.mlp_conv, config.conv_groups)

    def extend(self, context: Tensor, table: Tensor, cells: Tensor, cache: DFlashCache) -> None:
        """Store the keys and values of rows of the context [T, hidden]."""
        key, value = product(context, self._kv).chunk(2, dim=1)
        cache.write(self._number, self._keys(key, table), self._heads(value), cells)

    def forward(self, hidden: Tensor, block: Block, cache: DFlashCache) -> Tensor:
        """Residuals [S · W, hidden] to the same."""
        weights, eps = self._weights, self._config.rms_norm_eps
        spans = len(block.slots)
        x = ops.rms_norm(hidden, weights.input_norm, eps=eps)
        x, behind = self._attention_conv.before(x, spans)
        hidden = hidden + self._attention_conv.after(self._attend(x, block, cache), behind)
        x = ops.rms_norm(hidden, weights.mlp_norm, eps=eps)
        x, behind = self._mlp_conv.before(x, spans)
        return hidden + self._mlp_conv.after(gated_product(x, weights.gate_up, weights.down), behind)

    def _attend(self, x: Tensor, block: Block, cache: DFlashCache) -> Tensor:
        config, weights = self._config, self._weights
        sizes = (config.query_size, config.kv_size, config.kv_size)
        query, key, value = product(x, weights.qkv).split_with_sizes(sizes, dim=1)
        query = ops.rms_norm(self._heads(query), weights.query_norm, eps=config.rms_norm_eps)
        query = ops.rotary(query, block.rotary_table)
        own = (self._keys(key, block.rotary_table), self._heads(value))
        ring = cache.read(self._number, block.slots)
        keys, values = (
            torch.cat((before, self._by_span(rows, block)), dim=1)
            for before, rows in zip(ring, own, strict=True)
        )
        attended = F.scaled_dot_product_attention(
            self._by_span(query, block).transpose(1, 2),
            keys.transpose(1, 2),
            values.transpose(1, 2),
            attn_mask=block.mask,
            scale=config.head_dim**-0.5,
            enable_gqa=True,
        )
        return product(attended.transpose(1, 2).flatten(2).flatten(0, 1), weights.out)

    def _keys(self, key: Tensor, table: Tensor) -> Tensor:
        normed = ops.rms_norm(self._heads(key), self._weights.key_norm, eps=self._config.rms_norm_eps)
        return ops.rotary(normed, table)

    def _by_span(self, x: Tensor, block: Block) -> Tensor:
        """[S · W, heads, D] as [S, W, heads, D]."""
        return x.view(len(block.slots), -1, *x.shape[1:])

    def _heads(self, x: Tensor) -> Tensor:
        """[T, heads · D] as [T, heads, D]."""
        width = self._config.head_dim
        return x.reshape(x.shape[0], x.shape[1] // width, width)


class _Convolution:
    """Two taps, on each row and the one before it in its block, on both sides of what they wrap.

    out[i, c] = Σ_t (base[t, c] + dynamic[i, t, group of c]) · x[i - t, c], nothing before a block's first
    row; the dynamic taps of both sides are made from what comes in.
    """

    def __init__(self, weights: ConvolutionWeights, groups: int) -> None:
        self._weights = weights
        self._groups = groups

    def before(self, x: Tensor, spans: int) -> tuple[Tensor, Tensor]:
        """x [S · W, hidden] convolved, and the dynamic taps for `after`."""
        rows = x.shape[0] // spans
        dynamic = product(x, self._weights.dynamic).view(spans, rows, SIDES, TAPS, self._groups)
        return self._convolve(x, dynamic, 0), dynamic

    def after(self, x: Tensor, dynamic: Tensor) -> Tensor:
        """x [S · W, hidden] convolved."""
        return self._convolve(x, dynamic, 1)

    def _convolve(self, x: Tensor, dynamic: Tensor, side: int) -> Tensor:
        grouped = x.view(*dynamic.shape[:2], self._groups, -1).float()
        base = self._weights.base[side].view(TAPS, self._groups, -1)
        taps = base + dynamic[:, :, side, :, :, None].float()  # [S, W, taps, G, group]
        out = taps[:, :, 0] * grouped
        out[:, 1:] += taps[:, 1:, 1] * grouped[:, :-1]
        return out.view(x.shape).to(x.dtype)
