"""Random weights of the DFlash2 model in FP8, drawn on the device: for measurements without a checkpoint.

Knows no files.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sparkle.kernels import ops
from sparkle.model.dflash_config import DFlashConfig
from sparkle.model.dflash_weights import (
    SIDES,
    TAPS,
    ConvolutionWeights,
    DFlashLayerWeights,
    DFlashWeights,
    SelectorWeights,
    require_dflash_blocks,
)
from sparkle.model.random_values import ADDED_SHARE

NORM_SPREAD = 0.1


def random_dflash_weights(
    config: DFlashConfig, device: torch.device, seed: int
) -> DFlashWeights[ops.Fp8Blocks]:
    """Weights with which activations stay of order 1; equal for equal seeds on one kind of device.

    Raises UnsupportedModel as `require_dflash_blocks`.
    """
    require_dflash_blocks(config)
    draw = _Draw(device, seed)
    hidden, rank = config.hidden_size, config.selector_rank
    return DFlashWeights(
        fuse=draw.blocks(hidden, config.taps_size),
        context_norm=draw.norm(hidden),
        layers=tuple(_layer(draw, config) for _ in range(config.num_layers)),
        norm=draw.norm(hidden),
        selector=SelectorWeights(
            predecessors=draw.narrow(config.vocab_size, rank, spread=1.0),
            successors=draw.narrow(config.vocab_size, rank, spread=1 / math.sqrt(rank)),
            projection=draw.narrow(rank, hidden, spread=1 / math.sqrt(hidden)),
        ),
    )


def _layer(draw: _Draw, config: DFlashConfig) -> DFlashLayerWeights[ops.Fp8Blocks]:
    hidden, inner = config.hidden_size, config.intermediate_size
    return DFlashLayerWeights(
        input_norm=draw.norm(hidden),
        attention_conv=_convolution(draw, config),
        qkv=draw.blocks(config.query_size + 2 * config.kv_size, hidden),
        query_norm=draw.norm(config.head_dim),
        key_norm=draw.norm(config.head_dim),
        out=draw.blocks(hidden, config.query_size, share=ADDED_SHARE),
        mlp_norm=draw.norm(hidden),
        mlp_conv=_convolution(draw, config),
        gate_up=draw.blocks(2 * inner, hidden),
        down=draw.blocks(hidden, inner, share=ADDED_SHARE),
    )


def _convolution(draw: _Draw, config: DFlashConfig) -> ConvolutionWeights[ops.Fp8Blocks]:
    base = draw.floats(SIDES, TAPS, config.hidden_size, spread=0.2)
    base[:, 0] += 1.0  # mostly the row itself
    dynamic = draw.blocks(SIDES * TAPS * config.conv_groups, config.hidden_size, share=0.2)
    return ConvolutionWeights(base=base, dynamic=dynamic)


class _Draw:
    """Normally distributed tensors of one device, one after another."""

    def __init__(self, device: torch.device, seed: int) -> None:
        self._device = device
        self._generator = torch.Generator(device).manual_seed(seed)

    def blocks(self, rows: int, columns: int, *, share: float = 1.0) -> ops.Fp8Blocks:
        return ops.quantise_blocks(self.narrow(rows, columns, spread=share / math.sqrt(columns)))

    def norm(self, width: int) -> Tensor:
        return self.floats(width, spread=NORM_SPREAD)

    def narrow(self, *shape: int, spread: float) -> Tensor:
        return self._normal(*shape, dtype=torch.bfloat16) * spread

    def floats(self, *shape: int, spread: float) -> Tensor:
        return self._normal(*shape, dtype=torch.float32) * spread

    def _normal(self, *shape: int, dtype: torch.dtype) -> Tensor:
        return torch.randn(shape, generator=self._generator, device=self._device, dtype=dtype)
