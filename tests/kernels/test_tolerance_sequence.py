"""The bounds of the sequence ops: each with a reason, and none that lets a wrong result pass."""

from __future__ import annotations

import pytest
import torch

from sparkle.kernels.tolerance_sequence import SEQUENCE_BOUNDS, sequence_mismatch


@pytest.mark.parametrize("op", SEQUENCE_BOUNDS)
def test_a_bound_has_a_reason_and_refuses_what_is_over_it(op: str) -> None:
    bound = SEQUENCE_BOUNDS[op]
    assert len(bound.why) > 20
    exact = torch.randn(64, 8, dtype=torch.float64)
    assert sequence_mismatch(op, exact * (1.0 + 0.9 * bound.floor), exact, exact) is None
    over = exact * (1.0 + 1.1 * bound.floor)
    assert "relative error" in str(sequence_mismatch(op, over, exact, exact))


def test_nan_and_another_shape_are_mismatches() -> None:
    exact = torch.randn(4, 8, dtype=torch.float64)
    got = exact.clone()
    got[1, 2] = torch.nan
    assert "nan" in str(sequence_mismatch("gdn_step", got, exact, exact))
    assert "shape" in str(sequence_mismatch("gdn_step", exact[:2], exact, exact))
