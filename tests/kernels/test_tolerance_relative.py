"""The relative bounds: each has a reason, and the comparison sees what it must see."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from sparkle.kernels.tolerance_relative import RELATIVE_BOUNDS, relative_error, relative_mismatch


@pytest.mark.parametrize("op", RELATIVE_BOUNDS)
def test_a_bound_has_a_reason_and_refuses_what_is_over_it(op: str) -> None:
    bound = RELATIVE_BOUNDS[op]
    assert len(bound.why.split()) >= 4
    exact = torch.randn(64, 8, dtype=torch.float64)
    assert relative_mismatch(op, exact * (1.0 + 0.9 * bound.floor), exact, exact) is None
    over = exact * (1.0 + 1.1 * bound.floor)
    assert "relative error" in str(relative_mismatch(op, over, exact, exact))


def test_each_bound_is_what_some_test_holds_a_kernel_to() -> None:
    here = Path(__file__)
    tests = "".join(path.read_text(encoding="utf-8") for path in here.parent.glob("*.py") if path != here)
    assert [op for op in RELATIVE_BOUNDS if f'"{op}"' not in tests] == []


def test_the_error_is_relative_to_the_whole() -> None:
    exact = torch.tensor([3.0, 4.0], dtype=torch.float64)
    assert relative_error(torch.tensor([3.0, 4.5]), exact) == 0.1
    assert relative_error(torch.zeros(2), torch.zeros(2, dtype=torch.float64)) == 0.0
    assert relative_error(torch.ones(0), torch.ones(0, dtype=torch.float64)) == 0.0


def test_a_result_may_be_as_wrong_as_the_reference_and_little_more() -> None:
    exact = torch.ones(100, dtype=torch.float64)
    reference = torch.full((100,), 1.01)
    bound = RELATIVE_BOUNDS["fp8_linear"]
    allowed = bound.factor * 0.01 + bound.floor
    assert relative_mismatch("fp8_linear", torch.full((100,), 1 + 0.99 * allowed), reference, exact) is None
    told = relative_mismatch("fp8_linear", torch.full((100,), 1 + 1.01 * allowed), reference, exact)
    assert told is not None
    assert bound.why in told


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_finite_is_a_mismatch(bad: float) -> None:
    exact = torch.ones(4, dtype=torch.float64)
    got = torch.tensor([1.0, bad, 1.0, 1.0])
    assert relative_mismatch("norm_quantise", got, torch.ones(4), exact) is not None


def test_another_shape_is_a_mismatch() -> None:
    exact = torch.ones(4, dtype=torch.float64)
    assert relative_mismatch("norm_quantise", torch.ones(2, 2), torch.ones(4), exact) is not None
