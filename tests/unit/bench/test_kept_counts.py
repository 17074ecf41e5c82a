"""Kept counts by chance: the mean that was asked for, within the bounds, and the same ones each time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.kept_counts import kept_counts


@given(st.integers(1, 16), st.floats(0, 1), st.integers(1, 300), st.integers(0, 9))
def test_their_mean_is_the_one_asked_for(most: int, share: float, number: int, seed: int) -> None:
    mean = 1 + share * (most - 1)
    counts = kept_counts(mean, most, number, seed=seed)
    assert len(counts) == number
    assert sum(counts) == round(mean * number)
    assert 1 <= min(counts) <= max(counts) <= most


def test_they_differ_from_pass_to_pass_and_not_from_run_to_run() -> None:
    counts = kept_counts(9.5, 16, 200, seed=3)
    assert len(set(counts)) > 5
    assert counts == kept_counts(9.5, 16, 200, seed=3)
    assert counts != kept_counts(9.5, 16, 200, seed=4)


@pytest.mark.parametrize("mean", [0.9, 8.1])
def test_a_mean_that_no_pass_can_keep_is_refused(mean: float) -> None:
    with pytest.raises(ValueError, match=f"mean is {mean} but must be 1 to 8"):
        kept_counts(mean, 8, 10, seed=0)
