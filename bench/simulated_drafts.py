"""Drafts of simulated answers: how wide passes are, and how many guesses are right. Knows no scheduler."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random

from sparkle.engine.buckets import MAX_ROWS, PAIR, WIDTHS

GUESSES = 7
"""Of the passes whose kept tokens are given."""
GUESS = 0
"""What every guess is."""

GraphMs = Callable[[int, int], float]
"""(sequences, rows of each) -> milliseconds of such a pass."""


class SimulatedDrafts:
    """Every guess is right with one chance. Of all widths the one is taken with the most tokens a second.

    No wider than the graphs are: with 33 sequences or more one token is guessed.
    """

    def __init__(self, kept: float, graph_ms: GraphMs) -> None:
        """`kept`: tokens that a pass with GUESSES guesses writes of an answer, 1 to 1 + GUESSES, on average.

        With 1 nothing is guessed.
        """
        if not 1 <= kept <= 1 + GUESSES:
            raise ValueError(f"kept is {kept} but must be 1 to {1 + GUESSES}")
        self._chance = _chance(kept)
        self._graph_ms = graph_ms
        self._widths: dict[int, int] = {}
        self._random = Random(1)

    def choose(self, rooms: Mapping[str, int]) -> Mapping[str, tuple[int, ...]]:
        """A `scheduler.Drafts`."""
        width = self._width(len(rooms)) if rooms else 1
        return {request: (GUESS,) * min(room, width - 1) for request, room in rooms.items()}

    def right(self, guesses: int) -> int:
        """How many of so many guesses are, until the first that is not."""
        count = 0
        while count < guesses and self._random.random() < self._chance:
            count += 1
        return count

    def _width(self, sequences: int) -> int:
        if sequences not in self._widths:
            fitting = [width for width in WIDTHS if width == 1 or width * sequences <= MAX_ROWS]
            if fitting == [1] and PAIR * sequences <= MAX_ROWS:
                fitting.append(PAIR)
            self._widths[sequences] = max(
                fitting, key=lambda width: _kept(self._chance, width) / self._graph_ms(sequences, width)
            )
        return self._widths[sequences]


def no_guesses() -> SimulatedDrafts:
    """One token a pass."""
    return SimulatedDrafts(1.0, lambda _sequences, _width: 1.0)


def _kept(chance: float, width: int) -> float:
    return sum(chance**place for place in range(width))


def _chance(kept: float) -> float:
    """By halving: more are kept the greater it is."""
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if _kept(middle, 1 + GUESSES) < kept else (low, middle)
    return low
