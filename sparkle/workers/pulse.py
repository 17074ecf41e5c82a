"""What a worker says of itself in its heartbeats: who, where, how full. Knows no connection."""

from __future__ import annotations

import time
from collections.abc import Callable

from sparkle.schemas.control import Heartbeat
from sparkle.workers.lifecycle import LifeCycle


class Pulse:
    """Makes the worker's heartbeats; before the engine is ready it has no slots."""

    def __init__(self, *, worker: str, region: str, life: LifeCycle) -> None:
        self._worker = worker
        self._region = region
        self._life = life
        self._model = ""
        self._slots = 0
        self._jobs: Callable[[], list[str]] = list

    def serving(self, *, model: str, slots: int, jobs: Callable[[], list[str]]) -> None:
        """The engine is ready; `jobs` gives the ids of the jobs held."""
        self._model, self._slots, self._jobs = model, slots, jobs

    def heartbeat(self) -> Heartbeat:
        """How things stand now."""
        return Heartbeat(
            worker=self._worker,
            region=self._region,
            state=self._life.state,
            model=self._model,
            slots=self._slots,
            running=self._jobs(),
            sent_ms=time.time_ns() // 1_000_000,
        )
