"""Of each slot's window in the FP8 cache: how many of its tokens stay. Knows no tensor and no request."""

from __future__ import annotations


class Windows:
    """What of the last short span of a slot is to enter its state with the next one."""

    def __init__(self, num_slots: int) -> None:
        self._kept = [0] * num_slots

    def __getitem__(self, slot: int) -> int:
        """Tokens that stay, 0 for an empty window."""
        return self._kept[slot]

    def fill(self, slot: int, tokens: int) -> None:
        """The window has this span now; all of it stays, unless `keep` says otherwise."""
        self._kept[slot] = tokens

    def keep(self, slot: int, tokens: int) -> None:
        """Only the first `tokens` stay; due before the slot's next span, which follows these."""
        assert 0 <= tokens <= self._kept[slot], "more than were read"
        self._kept[slot] = tokens

    def empty(self, slot: int) -> None:
        """The window has nothing that is still to come."""
        self._kept[slot] = 0

    def copy(self, source: int, target: int) -> None:
        """The target's window holds what the source's does."""
        self._kept[target] = self._kept[source]
