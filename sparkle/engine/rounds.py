"""Fair shares between tenants: in each class, every tenant has one request a round. Knows no torch.

A tenant's requests join one round after the other, the first of them that which is being served. So one that
sends many stands behind itself, not in front of the others. One that was cancelled has used its round.
"""

from __future__ import annotations

from collections import Counter

from sparkle.engine.request import Request
from sparkle.schemas.priority import PriorityClass


class Rounds:
    """Numbers rounds, class by class."""

    def __init__(self) -> None:
        self._served: Counter[PriorityClass] = Counter()
        self._next: dict[tuple[PriorityClass, str | None], int] = {}

    def join(self, request: Request) -> None:
        """A new request gets the first round that has none of its tenant's and is not over."""
        place = request.priority, request.tenant
        request.round = max(self._served[request.priority], self._next.get(place, 0))
        self._next[place] = request.round + 1

    def was_read(self, request: Request) -> None:
        """Its prompt is read: earlier rounds are over."""
        served = max(self._served[request.priority], request.round)
        self._served[request.priority] = served
        # a tenant that is not ahead joins like a new one
        self._next = {
            place: number
            for place, number in self._next.items()
            if place[0] is not request.priority or number > served
        }
