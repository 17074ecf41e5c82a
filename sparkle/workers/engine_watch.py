"""Ends an engine process that hangs: asked now and then, it answers between two passes. Knows no job."""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

log = logging.getLogger(__name__)

_CHECKS = 4


class Watched(Protocol):
    """What the watch needs of an engine process: `engine.client.EngineProcess`."""

    @property
    def is_up(self) -> bool:
        """Whether it has said that it is ready, and has not ended since."""
        ...

    def ping(self) -> None:
        """Ask it for a sign of life."""
        ...

    def kill(self) -> None:
        """End it, whatever it does."""
        ...


class EngineWatch:
    """Watches one engine process, also after it was started again."""

    def __init__(self, engine: Watched, limit_s: float) -> None:
        """One pass takes at most `limit_s`."""
        self._engine = engine
        self._check_s = limit_s / _CHECKS
        self._silent_checks = 0

    def heard(self) -> None:
        """A frame has come: it passes."""
        self._silent_checks = 0

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(self._check_s)
            # checks are counted, not seconds: after a stop of this process itself a single one is due
            if not self._engine.is_up:
                self._silent_checks = 0
            elif self._silent_checks >= _CHECKS:
                log.error("engine_hangs", extra={"silent_s": round(self._silent_checks * self._check_s, 1)})
                self._silent_checks = 0
                self._engine.kill()
            else:
                self._silent_checks += 1
                self._engine.ping()
