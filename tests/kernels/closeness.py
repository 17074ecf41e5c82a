"""Asserts on FP8 results: within the bound of their op, or equal to the bit; and what they stand for."""

from __future__ import annotations

import torch
from torch import Tensor

from sparkle.kernels.quantise import GROUP, Fp8Blocks, Fp8Rows
from sparkle.kernels.tolerance_relative import relative_mismatch


def assert_close(op: str, got: Tensor, reference: Tensor, exact: Tensor) -> None:
    """`got` is within the op's bound of `exact` (float64)."""
    assert exact.dtype == torch.float64
    mismatch = relative_mismatch(op, got, reference, exact)
    assert mismatch is None, mismatch


def assert_same_bits(got: Tensor, want: Tensor) -> None:
    """Equal to the last bit, and no NaN."""
    assert not got.float().isnan().any(), "some of it was never written"
    assert torch.equal(got.float(), want.float()), f"{int((got.float() != want.float()).sum())} values differ"


def exact_rows(x: Fp8Rows) -> Tensor:
    """What an FP8 activation stands for, float64 [M, K]."""
    return x.values.double() * x.scales.double().repeat_interleave(GROUP, dim=1)


def exact_blocks(w: Fp8Blocks) -> Tensor:
    """What an FP8 weight stands for, float64 [N, K]."""
    scales = w.scales.double().repeat_interleave(GROUP, dim=0)[: w.values.shape[0]]
    return w.values.double() * scales.repeat_interleave(GROUP, dim=1)
