"""The numbers are spread evenly, and those of neighbouring seeds and positions have nothing in common."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkle.engine.uniform import stream_of, uniform

GRID = np.array([[uniform(stream_of(seed), position) for position in range(256)] for seed in range(256)])


def splitmix64(state: int) -> Iterator[int]:
    """The published generator, written with numpy's 64-bit arithmetic."""
    with np.errstate(over="ignore"):
        word = np.uint64(state)
        while True:
            word = word + np.uint64(0x9E3779B97F4A7C15)
            z = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            yield int(z ^ (z >> np.uint64(31)))


def test_the_generator_here_is_the_published_one() -> None:
    numbers = splitmix64(1234567)
    assert [next(numbers) for _ in range(3)] == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
    ]


@given(seed=st.integers(0, 2**63 - 1), position=st.integers(0, 20))
def test_it_is_that_generator_started_from_the_mixed_seed(seed: int, position: int) -> None:
    numbers = splitmix64(next(splitmix64(seed)))
    expected = [next(numbers) for _ in range(position + 1)][-1]
    assert uniform(stream_of(seed), position) == (expected >> 11) / 2**53


@given(seed=st.integers(0, 2**63 - 1), position=st.integers(0, 2**40))
def test_in_bounds(seed: int, position: int) -> None:
    assert 0.0 <= uniform(stream_of(seed), position) < 1.0


def test_evenly_spread() -> None:
    counts, _ = np.histogram(GRID, bins=64, range=(0.0, 1.0))
    expected = GRID.size / 64
    # chi-square with 63 degrees of freedom: above 104 once in a thousand
    assert float(((counts - expected) ** 2 / expected).sum()) < 104.0
    assert len(np.unique(GRID)) == GRID.size


@pytest.mark.parametrize(
    ("first", "second"),
    [(GRID[:, :-1], GRID[:, 1:]), (GRID[:-1], GRID[1:]), (GRID[:-1, 1:], GRID[1:, :-1])],
    ids=["next-position", "next-seed", "shifted"],
)
def test_neighbours_are_not_correlated(first: np.ndarray, second: np.ndarray) -> None:
    correlation = float(np.corrcoef(first.ravel(), second.ravel())[0, 1])
    # four standard deviations of 65,000 independent pairs
    assert abs(correlation) < 4 / 255
