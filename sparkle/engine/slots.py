"""State slots: which are free. Knows no torch and not who holds the others."""

from __future__ import annotations


class SlotPool:
    """Hands out slots 0 to num_slots - 1; each is free or held once."""

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self._free = list(range(num_slots - 1, -1, -1))
        self._unwiped: set[int] = set()

    @property
    def num_free(self) -> int:
        """Slots that can be taken."""
        return len(self._free)

    @property
    def free(self) -> frozenset[int]:
        """The free slots, for checks."""
        return frozenset(self._free)

    @property
    def unwiped(self) -> frozenset[int]:
        """Slots that became free since the last `take_unwiped`, whoever has them now."""
        return frozenset(self._unwiped)

    def take(self) -> int | None:
        """A slot, or None where all are held."""
        return self._free.pop() if self._free else None

    def give_back(self, slot: int) -> None:
        """A slot taken before is free again."""
        self._free.append(slot)
        self._unwiped.add(slot)

    def take_unwiped(self) -> tuple[int, ...]:
        """`unwiped` in order: their content is to be wiped now."""
        unwiped, self._unwiped = tuple(sorted(self._unwiped)), set()
        return unwiped
