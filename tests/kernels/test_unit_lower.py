"""The inverse of unit lower triangular matrices in a kernel, on the hardest that the delta rule makes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sparkle.kernels.jit import Pointer, constexpr, jit, tl
from sparkle.kernels.tolerance_relative import relative_error
from sparkle.kernels.unit_lower import inverse_of_64
from tests.kernels.interpreter import Interpreter


@jit()
def inverse_kernel(p_lower: Pointer, p_out: Pointer, PRECISION: constexpr) -> None:
    o_16, o_32 = tl.arange(0, 16), tl.arange(0, 32)
    o_block = o_16[None, :, None] * 64 + o_16[None, None, :]
    o_quarter = o_32[:, None] * 64 + o_32[None, :]
    b_upper, b_below, b_lower = inverse_of_64(
        tl.load(p_lower + tl.arange(0, 4)[:, None, None] * (16 * 65) + o_block),
        tl.load(p_lower + tl.arange(0, 2)[:, None, None] * (32 * 65) + 16 * 64 + o_block),
        tl.load(p_lower + 32 * 64 + o_quarter),
        PRECISION,
    )
    tl.store(p_out + o_quarter, b_upper)
    tl.store(p_out + 32 * 64 + o_quarter, b_below)
    tl.store(p_out + 32 * 65 + o_quarter, b_lower)


def inverted(lower: Tensor) -> Tensor:
    """Runs in the interpreter's process."""
    out = torch.zeros_like(lower)
    inverse_kernel[(1,)](lower, out, PRECISION="tf32x3", num_warps=1)
    return out


@pytest.mark.parametrize("alike", [0.0, 0.9, 1.0], ids=["random", "similar", "equal"])
def test_inverse(interpreter: Interpreter, alike: float) -> None:
    # keys that are all the same: every power of the lower part is far larger than the inverse
    keys = alike + (1.0 - alike) * torch.randn(64, 32)
    keys = torch.nn.functional.normalize(keys, dim=1)
    lower = (keys @ keys.t()).tril(-1)
    got = interpreter.call("tests.kernels.test_unit_lower:inverted", lower)
    exact = torch.inverse(torch.eye(64, dtype=torch.float64) + lower.double())
    assert relative_error(got, exact) < 1e-5
