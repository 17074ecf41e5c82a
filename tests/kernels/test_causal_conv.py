"""The carried convolution against a sum over taps in float64, and against itself cut in two."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sparkle.kernels import ops
from sparkle.kernels.tolerance import mismatch
from tests.kernels.spans import FLOATS, NUM_SLOTS, SPANS, bounds_of, slots_of, starts_of


def exact_conv(x: Tensor, weight: Tensor, carried: Tensor) -> Tensor:
    """One sequence: x [n, C], weight [C, W], carried [W-1, C], all float64."""
    width = weight.shape[1]
    whole = torch.cat((carried, x))
    out = torch.zeros_like(x)
    for row in range(len(x)):
        for tap in range(width):
            out[row] += weight[:, tap] * whole[row + tap]
    return out / (1 + (-out).exp())


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize("lengths", SPANS, ids=str)
def test_causal_conv(lengths: tuple[int, ...], width: int, dtype: torch.dtype) -> None:
    x = torch.randn(sum(lengths), 6).to(dtype)
    weight = torch.randn(6, width)
    slots, starts = slots_of(lengths), starts_of(lengths)
    columns = torch.full((NUM_SLOTS, width - 1, 6), torch.nan, dtype=dtype)
    columns[slots] = torch.randn(len(lengths), width - 1, 6).to(dtype)
    before = columns.clone()

    got = ops.causal_conv(x, weight, columns, starts, slots)

    exact = torch.empty_like(x, dtype=torch.float64)
    for (start, stop), slot in zip(bounds_of(starts), slots, strict=True):
        exact[start:stop] = exact_conv(x[start:stop].double(), weight.double(), before[slot].double())
        whole = torch.cat((before[slot], x[start:stop]))
        assert torch.equal(columns[slot], whole[len(whole) - width + 1 :])
    assert mismatch("causal_conv", got, exact) is None
    untouched = [slot for slot in range(NUM_SLOTS) if slot not in slots]
    assert bool(columns[untouched].isnan().all())


@pytest.mark.parametrize("cut", [0, 1, 2, 3, 8, 9])
def test_two_passes_are_one(cut: int) -> None:
    x, weight = torch.randn(9, 5), torch.randn(5, 4)
    columns, slots = torch.zeros(3, 3, 5), torch.tensor([2])
    parts = [
        ops.causal_conv(part, weight, columns, starts_of([len(part)]), slots) for part in (x[:cut], x[cut:])
    ]
    exact = exact_conv(x.double(), weight.double(), torch.zeros(3, 5, dtype=torch.float64))
    assert mismatch("causal_conv", torch.cat(parts), exact) is None
    assert torch.equal(columns[2], x[6:])
