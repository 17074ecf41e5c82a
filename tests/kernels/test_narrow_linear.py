"""The product with few outputs: the reference against float64, the kernel against both."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sparkle.kernels import narrow_linear
from sparkle.kernels.tolerance_relative import relative_error
from tests.kernels.closeness import assert_close
from tests.kernels.fp8_inputs import CPU, random_matrix

SHAPES = [(1, 16, 128), (17, 48, 320), (33, 96, 528)]  # rows, columns, depth


def factors(rows: int, columns: int, depth: int, device: torch.device = CPU) -> tuple[Tensor, Tensor]:
    return random_matrix(rows, depth, seed=1, device=device), random_matrix(
        columns, depth, seed=2, device=device
    )


def assert_product(got: Tensor, x: Tensor, w: Tensor) -> None:
    assert got.dtype == torch.float32
    exact = x.double() @ w.double().t()
    assert_close("narrow_linear", got, narrow_linear.narrow_linear_reference(x, w), exact)


@pytest.mark.parametrize("shape", [*SHAPES, (0, 16, 128), (2, 4, 24)], ids=str)
def test_product(shape: tuple[int, int, int]) -> None:
    x, w = factors(*shape)
    got = narrow_linear.narrow_linear(x, w)
    # sums in float32: rounded to bfloat16 they would be off by a thousand times as much
    exact = x.double() @ w.double().t()
    assert relative_error(got, exact) < 1e-6


def test_wrong_inputs_are_refused() -> None:
    x, w = factors(3, 16, 128)
    with pytest.raises(ValueError, match=r"x is torch\.float32"):
        narrow_linear.narrow_linear(x.float(), w)
    with pytest.raises(ValueError, match=r"w has shape \[16, 112\] but must be \[any, 128\]"):
        narrow_linear.narrow_linear(x, w[:, 16:])
    with pytest.raises(ValueError, match="x has strides"):
        narrow_linear.narrow_linear(random_matrix(3, 256, seed=1)[:, :128], w)
    with pytest.raises(ValueError, match="w has 257 rows"):
        narrow_linear.narrow_linear(x, torch.zeros(257, 128, dtype=torch.bfloat16))
