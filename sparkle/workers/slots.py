"""A worker's slots: which are free, and the offers that wait for one. Knows no job, only how many run.

An offer that waits gets the next slot that becomes free, before the queue is asked again: of a shorter class
first, among equals the one that came first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from sparkle.schemas.priority import PriorityClass


@dataclass(eq=False, slots=True)
class _Waiting:
    priority: PriorityClass
    granted: asyncio.Future[bool]

    def settle(self, granted: bool) -> None:
        """Its answer; only the first one counts."""
        if not self.granted.done():
            self.granted.set_result(granted)


class Slots:
    """`total` slots, taken by the jobs that run and kept for offers that were granted one."""

    def __init__(self, total: int, running: Callable[[], int], asked: Callable[[], int] = lambda: 0) -> None:
        """`running` counts the jobs that hold a slot now, `asked` those that the queue was just asked for."""
        self.total = total
        self._running = running
        self._asked = asked
        self._kept = 0
        self._closed = False
        self._paused = False
        # in the order of arrival
        self._waiting: list[_Waiting] = []

    @property
    def free(self) -> int:
        """Slots for further jobs, those asked for included; none while paused, or once closed."""
        return 0 if self._shut else max(0, self.total - self._running() - self._kept)

    def on_top(self, longer: int) -> int:
        """Jobs that may come where no slot is free, because `longer` of those that run are of longer classes.

        An eighth of all slots at most: they wait here until one gives way, and elsewhere a slot may be free.
        """
        more = self._running() + self._kept - self.total
        return 0 if self._shut else max(0, min(longer, max(1, self.total // 8)) - more)

    @property
    def waiting(self) -> int:
        """Offers that wait for a slot."""
        return len(self._waiting)

    async def reserve(self, priority: PriorityClass, wait_s: float) -> bool:
        """Keep a slot, as soon as one is free; False when none was within `wait_s`, or once closed.

        Who gets True calls `release` once the job holds its slot, or is not coming.
        """
        waiting = _Waiting(priority, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        self.freed()
        if self._closed or wait_s <= 0:
            waiting.settle(False)
        timer = asyncio.get_running_loop().call_later(wait_s, waiting.settle, False)
        try:
            return await waiting.granted
        except asyncio.CancelledError:
            if not waiting.granted.cancelled() and waiting.granted.result():
                self.release()
            raise
        finally:
            timer.cancel()
            if waiting in self._waiting:
                self._waiting.remove(waiting)

    def release(self) -> None:
        """A slot that was kept is used, or not needed."""
        self._kept -= 1
        self.freed()

    def freed(self) -> None:
        """A slot may have become free: keep it for who waits."""
        while self.free > self._asked() and self._waiting:
            first = min(self._waiting, key=lambda waiting: waiting.priority)
            self._waiting.remove(first)
            if not first.granted.done():
                self._kept += 1
                first.settle(True)

    def pause(self) -> None:
        """Nothing is taken until `resume`; who waits goes on waiting."""
        self._paused = True

    def resume(self) -> None:
        """Take jobs again."""
        self._paused = False
        self.freed()

    @property
    def _shut(self) -> bool:
        return self._closed or self._paused

    def close(self) -> None:
        """Nothing more is taken; whoever waits is told so."""
        self._closed = True
        for waiting in self._waiting:
            waiting.settle(False)
