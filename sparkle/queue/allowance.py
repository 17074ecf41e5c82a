"""How much may be done at once and over time. Pure: the caller tells the time."""

from __future__ import annotations


class Allowance:
    """Units to spend: one second's worth at first and at most, and `per_s` more each second."""

    def __init__(self, per_s: float, *, now_s: float) -> None:
        self._per_s = per_s
        self._left = per_s
        self._at_s = now_s

    def is_left(self, now_s: float) -> bool:
        """Whether anything may be spent now."""
        self._left = min(self._per_s, self._left + (now_s - self._at_s) * self._per_s)
        self._at_s = now_s
        return self._left > 0

    def spend(self, units: int) -> None:
        """What was done; it may be more than is left, and is then waited for."""
        self._left -= units
