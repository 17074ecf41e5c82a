"""Random weights for the FP8 decoder, drawn on the device itself: for measurements without a checkpoint.

Knows no files; random_checkpoint writes the same kind of weights to a directory.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sparkle.kernels import ops
from sparkle.model import random_values
from sparkle.model.config import ModelConfig
from sparkle.model.copy_plan import spans
from sparkle.model.fp8_weights import (
    Fp8AttentionWeights,
    Fp8DecoderWeights,
    Fp8DeltaNetWeights,
    Fp8LayerWeights,
    Fp8MtpWeights,
    empty_weights,
)

PIECE = 1 << 26
"""Values drawn at once: their random numbers take four bytes each."""

BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
"""A dtype of as many bytes that every op of torch takes."""


def random_fp8_weights(config: ModelConfig, device: torch.device, seed: int) -> Fp8DecoderWeights:
    """Weights with which activations stay of order 1; equal for equal seeds on one kind of device.

    Raises UnsupportedModel as `empty_weights`.
    """
    weights = empty_weights(config, device)
    draw = _Draw(device, seed)
    draw.floats(weights.embedding, random_values.embedding_values())
    for layer in weights.layers:
        _layer(draw, layer)
    draw.floats(weights.norm, random_values.norm_values())
    draw.blocks(weights.lm_head)
    if weights.mtp is not None:
        _mtp(draw, weights.mtp)
    return weights


def _mtp(draw: _Draw, weights: Fp8MtpWeights) -> None:
    for norm in (weights.embedding_norm, weights.hidden_norm, weights.norm):
        draw.floats(norm, random_values.norm_values())
    draw.blocks(weights.joined)
    _layer(draw, weights.layer)


def _layer(draw: _Draw, weights: Fp8LayerWeights) -> None:
    draw.floats(weights.input_norm, random_values.norm_values())
    if isinstance(weights.mixer, Fp8AttentionWeights):
        _attention(draw, weights.mixer)
    else:
        _delta_net(draw, weights.mixer)
    draw.floats(weights.mlp_norm, random_values.norm_values())
    draw.blocks(weights.gate_up)
    draw.blocks(weights.down, added=True)


def _attention(draw: _Draw, weights: Fp8AttentionWeights) -> None:
    draw.blocks(weights.qkvg)
    draw.floats(weights.query_norm, random_values.norm_values())
    draw.floats(weights.key_norm, random_values.norm_values())
    draw.blocks(weights.out, added=True)


def _delta_net(draw: _Draw, weights: Fp8DeltaNetWeights) -> None:
    draw.blocks(weights.qkvz)
    draw.floats(weights.ba, random_values.matrix_values(weights.ba.shape[1]))
    draw.floats(weights.conv, random_values.convolution_values())
    draw.floats(weights.gates.a_log, random_values.a_log_values())
    draw.floats(weights.gates.dt_bias, random_values.dt_bias_values())
    draw.floats(weights.norm, random_values.gated_norm_values())
    draw.blocks(weights.out, added=True)


class _Draw:
    """Fills tensors of one device, one after another."""

    def __init__(self, device: torch.device, seed: int) -> None:
        self._device = device
        self._generator = torch.Generator(device).manual_seed(seed)

    def blocks(self, place: ops.Fp8Blocks, *, added: bool = False) -> None:
        self.floats(place.values, random_values.fp8_values())
        self.floats(place.scales, random_values.scale_values(place.values.shape[1], added=added))

    def floats(self, place: Tensor, values: random_values.Values) -> None:
        bits = BITS[place.dtype.itemsize]
        table = torch.tensor(values).to(place.dtype).view(bits).to(self._device)
        flat = place.view(bits).view(-1)
        for start, stop in spans(flat.numel(), PIECE):
            levels = torch.randint(
                random_values.LEVELS,
                (stop - start,),
                dtype=torch.int32,
                generator=self._generator,
                device=self._device,
            )
            torch.index_select(table, 0, levels, out=flat[start:stop])
