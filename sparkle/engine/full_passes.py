"""What a full pass takes at least, learned from those that were run. Knows no torch and no clock."""

from __future__ import annotations

import math

SEEN_PASSES = 4
"""Full passes until the shortest is believed: the first ones may be slower than any later one."""


class FullPasses:
    """Remembers the shortest. A pass with fewer rows says nothing: it may take less a row, or more."""

    def __init__(self, pass_tokens: int) -> None:
        """`pass_tokens`: rows of a full pass."""
        self._pass_tokens = pass_tokens
        self._seen = 0
        self._shortest_s = math.inf

    @property
    def shortest_s(self) -> float:
        """What none of them took less than; 0 until enough were seen."""
        return self._shortest_s if self._seen >= SEEN_PASSES else 0.0

    def passed(self, rows: int, took_s: float) -> None:
        """A pass with so many rows took so long."""
        if rows >= self._pass_tokens:
            self._seen += 1
            self._shortest_s = min(self._shortest_s, took_s)
