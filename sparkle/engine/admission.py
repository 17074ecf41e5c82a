"""Who waits, who runs, and who of those that wait is next to get slot and pages. Knows no torch and no clock.

1. The first one in line gets a slot, and the pages for its longest possible answer: no answer ever fails for
   memory half way. A smaller one may pass one that does not fit, until that is overdue: `waiting.py`.
2. Where there is no room for a shorter class, a longer one may have to give way: `preemption.py`.
"""

from __future__ import annotations

from bisect import insort

from sparkle.engine.holdings import Holdings
from sparkle.engine.preemption import giving_way
from sparkle.engine.request import Request, RequestState
from sparkle.engine.waiting import Waiting


class Admission:
    """Moves requests between those that wait and those that run."""

    def __init__(self, holdings: Holdings, num_slots: int) -> None:
        """So many run at once."""
        self.waiting = Waiting()
        self.running: list[Request] = []
        """By class, then by arrival."""
        self.preempted = 0
        """How often one has given way."""
        self._holdings = holdings
        self._num_slots = num_slots

    def admit(self, now_s: float) -> None:
        """Give slots and pages to whoever can have them."""
        # whose slots hold what they are said to: no pass has run with those admitted now
        earlier = [*self.running]
        while len(self.running) < self._num_slots:
            request = self._next(now_s)
            if request is None or not self._begin(request):
                break
        while (request := self.waiting.shortest) is not None and self._make_way(request, earlier, now_s):
            pass

    def end(self, request: Request) -> None:
        """It neither waits nor runs any more; what it holds is the caller's to take back."""
        if request.state is RequestState.WAITING:
            self.waiting.remove(request)
        else:
            self.running.remove(request)

    def check_integrity(self) -> None:
        """Who waits holds nothing, and who runs holds what it may need. For tests."""
        pages = self._holdings.pages
        for request in self.running:
            assert request.state in (RequestState.READING, RequestState.DECODING)
            assert len(request.pages) == pages.pages_for(request.worst_case_tokens)
            assert request.computed <= len(request.prompt) + len(request.answer) <= request.worst_case_tokens
        assert all(request.state is RequestState.WAITING for request in self.waiting)
        assert all(request.slot is None and not request.pages for request in self.waiting)
        assert self.running == sorted(self.running, key=_by_class)
        assert len(self.running) <= self._num_slots

    def _next(self, now_s: float) -> Request | None:
        first = self.waiting.first(now_s)
        if first is None or self._holdings.has_room_with_cached(first):
            return first
        return self.waiting.passing(now_s, self._holdings.has_room)

    def _make_way(self, request: Request, earlier: list[Request], now_s: float) -> bool:
        """Whether one that waits was given slot and pages of others, who run since an earlier pass."""
        pages = self._holdings.pages
        needed = pages.pages_for(request.worst_case_tokens)
        # what is free may be kept for another one
        if self.waiting.overdue(now_s) in (None, request):
            needed -= pages.num_obtainable
        leaving = giving_way(earlier, request, needed, pages.holders, now_s)
        for one in leaving:
            earlier.remove(one)
            self.running.remove(one)
            self._holdings.interrupt(one)
            one.give_way()
            self.preempted += 1
            self.waiting.add(one)
        return bool(leaving) and self._holdings.has_room(request) and self._begin(request)

    def _begin(self, request: Request) -> bool:
        """Whether one that waits got slot and pages."""
        if not self._holdings.admit(request):
            return False
        self.waiting.remove(request)
        request.move_to(RequestState.READING)
        insort(self.running, request, key=_by_class)
        return True


def _by_class(request: Request) -> tuple[str, int]:
    return request.priority, request.arrival
