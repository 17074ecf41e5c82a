"""In which order a worker asks the classes for jobs: shortest first, yet none starves. Pure; knows no queue.

1. Classes are asked from the shortest to the longest.
2. A class whose last job had waited longer than is in time is late: it goes before the others, the one that
   is most late first.
3. Every `share_every`-th job pulled is taken from the class that has gone longest without being served or
   found empty. So a class with work gets at least one of every `share_every * number of classes` jobs,
   whatever the others bring.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from sparkle.errors import ConfigError
from sparkle.schemas.priority import PriorityClass, target_s

IN_TIME_S: Mapping[PriorityClass, float] = MappingProxyType(
    {priority: 4 * target_s(priority) for priority in PriorityClass}
)
"""A wait of four times the class's target is still in time."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What to ask next."""

    classes: tuple[PriorityClass, ...]
    """In this order, until one has work."""

    most: int
    """Jobs to take at most before the next turn."""


@dataclass(slots=True)
class _Seen:
    lateness: float = 0.0
    """Wait of the last job pulled, over what is in time; 0 once the class was empty."""

    unserved: int = 0
    """Jobs pulled from others since this class was served or empty."""


@dataclass(slots=True)
class SweepOrder:
    """Remembers what was pulled and says what to ask next."""

    share_every: int = 8
    """Every so many jobs, the longest unserved class goes first."""

    _seen: dict[PriorityClass, _Seen] = field(
        default_factory=lambda: {priority: _Seen() for priority in PriorityClass}
    )
    _pulled: int = 0

    def __post_init__(self) -> None:
        if self.share_every < 2:
            raise ConfigError(f"share_every is {self.share_every} but must be at least 2")

    def next_turn(self) -> Turn:
        """The order of the classes now, and how many jobs it is good for."""
        until_share = self.share_every - 1 - self._pulled % self.share_every
        if until_share == 0:
            return Turn(self._by(lambda seen: seen.unserved), 1)
        return Turn(self._by(lambda seen: seen.lateness if seen.lateness > 1.0 else 0.0), until_share)

    def pulled(self, priority: PriorityClass, *, waited_s: float, pending: int) -> None:
        """A job of this class was taken after `waited_s`; `pending` more wait behind it."""
        self._pulled += 1
        for other, seen in self._seen.items():
            seen.unserved = 0 if other is priority else seen.unserved + 1
        self._seen[priority].lateness = waited_s / IN_TIME_S[priority] if pending else 0.0

    def empty(self, priority: PriorityClass) -> None:
        """This class was asked and has no work."""
        self._seen[priority] = _Seen()

    def _by(self, rank: Callable[[_Seen], float]) -> tuple[PriorityClass, ...]:
        """Highest rank first; among equals the shorter class."""
        return tuple(sorted(PriorityClass, key=lambda priority: -rank(self._seen[priority])))
