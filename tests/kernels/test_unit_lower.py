"""The inverse of unit lower triangular matrices in a kernel, on the hardest that the delta rule makes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sparkle.kernels.jit import Pointer, constexpr, jit
from sparkle.kernels.tolerance_relative import relative_error
from sparkle.kernels.unit_lower import invert_64
from tests.kernels.interpreter import Interpreter


@jit()
def inverse_kernel(p_matrix: Pointer, PRECISION: constexpr) -> None:
    invert_64(p_matrix, PRECISION)


def inverted(matrix: Tensor) -> Tensor:
    """Runs in the interpreter's process."""
    inverse_kernel[(1,)](matrix, PRECISION="tf32x3", num_warps=1)
    return matrix


@pytest.mark.parametrize("alike", [0.0, 0.9, 1.0], ids=["random", "similar", "equal"])
def test_inverse(interpreter: Interpreter, alike: float) -> None:
    # keys that are all the same: every power of the lower part is far larger than the inverse
    keys = alike + (1.0 - alike) * torch.randn(64, 32)
    keys = torch.nn.functional.normalize(keys, dim=1)
    lower = keys @ keys.t()
    got = interpreter.call("tests.kernels.test_unit_lower:inverted", lower)
    exact = torch.inverse(torch.eye(64, dtype=torch.float64) + lower.double().tril(-1))
    assert relative_error(got, exact) < 1e-5
