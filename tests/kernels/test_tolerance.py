"""The bounds themselves: every op has one with a reason, and the comparison sees what it must see."""

from __future__ import annotations

import ast
import math
from pathlib import Path

import pytest
import torch

from sparkle.kernels import ops
from sparkle.kernels.tolerance import BOUNDS, Bound, mismatch


def test_each_op_has_a_row_and_each_row_an_op_and_a_reason() -> None:
    tree = ast.parse(Path(ops.__file__).read_text(encoding="utf-8"))
    names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert {name for name in names if not name.startswith("_")} <= {op for op, _ in BOUNDS}
    assert all(callable(getattr(ops, op)) for op, _ in BOUNDS)
    assert all((op, torch.float32) in BOUNDS for op, _ in BOUNDS)
    assert all(len(bound.why.split()) >= 4 for bound in BOUNDS.values())


def test_an_error_counts_in_units_of_the_larger_of_entry_and_mean() -> None:
    exact = torch.tensor([100.0, 1e-9, 2.0], dtype=torch.float64)
    eps = torch.finfo(torch.float32).eps
    ulps = BOUNDS["rms_norm", torch.float32].ulps
    rms = math.sqrt((100**2 + 2**2) / 3)
    for place, size in enumerate([100, rms, rms]):
        got = exact.float()
        got[place] += 0.9 * ulps * eps * size
        assert mismatch("rms_norm", got, exact) is None
        got[place] += 0.3 * ulps * eps * size
        told = mismatch("rms_norm", got, exact)
        assert told is not None
        assert f"at [{place}]" in told


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_a_mismatch(bad: float) -> None:
    exact = torch.ones(2, 2, dtype=torch.float64)
    got = torch.ones(2, 2)
    got[1, 0] = bad
    told = mismatch("silu_mul", got, exact)
    assert told is not None
    assert "at [1, 0]" in told


def test_moved_values_must_be_equal() -> None:
    exact = torch.tensor([1.0, 0.1], dtype=torch.float64)
    assert BOUNDS["write_kv", torch.float32] == Bound(0, "values are moved, not computed")
    assert mismatch("write_kv", exact.float(), exact) is None
    assert mismatch("write_kv", exact.float().nextafter(torch.tensor(2.0)), exact) is not None


def test_shapes_must_agree_and_nothing_equals_nothing() -> None:
    assert mismatch("rotary", torch.ones(2), torch.ones(3, dtype=torch.float64)) is not None
    assert mismatch("rotary", torch.ones(0), torch.ones(0, dtype=torch.float64)) is None
