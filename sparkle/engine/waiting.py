"""The line of requests that wait for a slot and memory, and whose turn it is. Knows no torch and no pool.

1. The overdue one that came first is next. While it does not fit, what becomes free is kept for it.
2. Where none is overdue it is the first one in `order.py`'s order that fits: a smaller one may go ahead of
   one that does not. So a big one waits until its class's target has passed, and then for what runs.

The time is given to it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator

from sparkle.engine.order import by_work, is_overdue
from sparkle.engine.request import Request
from sparkle.schemas.priority import PriorityClass


class Waiting:
    """Kept in order, so that a long line costs a pass next to nothing. What a request is ordered by stays."""

    def __init__(self) -> None:
        """Nobody waits."""
        self._line: list[Request] = []
        self._by_arrival: dict[PriorityClass, list[Request]] = {priority: [] for priority in PriorityClass}

    def __len__(self) -> int:
        return len(self._line)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._line)

    def add(self, request: Request) -> None:
        """It waits from now on."""
        insort(self._line, request, key=by_work)
        insort(self._by_arrival[request.priority], request, key=_arrival)

    def remove(self, request: Request) -> None:
        """It waits no longer."""
        del self._line[bisect_left(self._line, by_work(request), key=by_work)]
        line = self._by_arrival[request.priority]
        del line[bisect_left(line, request.arrival, key=_arrival)]

    @property
    def shortest(self) -> Request | None:
        """The first one if none were overdue; None where nobody waits."""
        return next(iter(self._line), None)

    def overdue(self, now_s: float) -> Request | None:
        """Of those that are overdue the one that came first: what is free is kept for it; None for none."""
        # of one class who came first is overdue first
        first = (line[0] for line in self._by_arrival.values() if line)
        overdue = (request for request in first if is_overdue(request, now_s))
        return min(overdue, key=_arrival, default=None)

    def first(self, now_s: float) -> Request | None:
        """Whose turn it is; None where nobody waits."""
        return self.overdue(now_s) or self.shortest

    def passing(self, now_s: float, fits: Callable[[Request], bool]) -> Request | None:
        """Who may go ahead of the first one, which does not fit; None where nobody does or may."""
        if self.overdue(now_s) is not None:
            return None
        return next((request for request in self._line[1:] if fits(request)), None)


def _arrival(request: Request) -> int:
    return request.arrival
