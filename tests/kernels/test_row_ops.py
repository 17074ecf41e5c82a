"""The ops on rows against the same formulas written once more in float64."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from sparkle.kernels import ops
from sparkle.kernels.tolerance import mismatch
from tests.kernels.spans import FLOATS

EPS = 1e-6


def sigmoid(x: Tensor) -> Tensor:
    return 1 / (1 + (-x).exp())


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (5, 2, 130), (0, 8), (4, 1023)], ids=str)
def test_rms_norm(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = (3 * torch.randn(shape)).to(dtype)
    weight = torch.randn(shape[-1])
    wide = x.double()
    exact = wide / (wide.square().mean(-1, keepdim=True) + EPS).sqrt() * (1 + weight.double())
    got = ops.rms_norm(x, weight, eps=EPS)
    assert got.dtype == dtype
    assert mismatch("rms_norm", got, exact) is None


def test_rms_norm_of_tiny_rows_feels_eps() -> None:
    x = torch.full((1, 4), 1e-3)
    exact = torch.full((1, 4), 1 / math.sqrt(2), dtype=torch.float64)
    assert mismatch("rms_norm", ops.rms_norm(x, torch.zeros(4), eps=1e-6), exact) is None


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 5, 7), (2, 6, 128), (0, 2, 8)], ids=str)
def test_gated_rms_norm(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x, gate = (3 * torch.randn(2, *shape)).to(dtype)
    weight = torch.randn(shape[-1])
    wide, wide_gate = x.double(), gate.double()
    normed = wide / (wide.square().mean(-1, keepdim=True) + EPS).sqrt()
    exact = normed * weight.double() * wide_gate * sigmoid(wide_gate)
    assert mismatch("gated_rms_norm", ops.gated_rms_norm(x, gate, weight, eps=EPS), exact) is None


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(1, 2), (5, 14), (0, 4), (3, 1026)], ids=str)
def test_silu_mul(shape: tuple[int, int], dtype: torch.dtype) -> None:
    gate_up = (5 * torch.randn(shape)).to(dtype)
    gate, up = gate_up[:, : shape[1] // 2].double(), gate_up[:, shape[1] // 2 :].double()
    assert mismatch("silu_mul", ops.silu_mul(gate_up), gate * sigmoid(gate) * up) is None


@pytest.mark.parametrize("scale_dtype", FLOATS)
@pytest.mark.parametrize("shape", [(1, 1), (128, 128), (127, 129), (300, 64), (5, 513), (256, 384)], ids=str)
def test_dequantise_blocks(shape: tuple[int, int], scale_dtype: torch.dtype) -> None:
    rows, columns = shape
    weight = (100 * torch.randn(shape)).clamp(-448, 448).to(torch.float8_e4m3fn)
    scales = torch.rand(math.ceil(rows / 128), math.ceil(columns / 128)).to(scale_dtype)
    exact = weight.double()
    for i in range(rows):
        for block in range(scales.shape[1]):
            exact[i, 128 * block : 128 * block + 128] *= scales[i // 128, block].double()
    assert mismatch("dequantise_blocks", ops.dequantise_blocks(weight, scales), exact) is None
