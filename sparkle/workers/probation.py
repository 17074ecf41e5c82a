"""Which job is it that ends engines: strikes, and a trial of the suspects one at a time. Knows no engine.

1. When an engine ends, every job in it has one strike more. At the third in a row the job is given up.
2. With two a job is a suspect. One suspect at a time is let in, and an end meanwhile is its strike alone.
3. A suspect is cleared when it has ended, or has written some tokens more than it had before.
"""

from __future__ import annotations

import asyncio

MAX_STRIKES = 3
SUSPECT_STRIKES = MAX_STRIKES - 1
CLEARED_TOKENS = 16
"""What ended an engine is met again at the same place, or soon behind it."""


class Probation:
    """The suspects of one worker."""

    def __init__(self) -> None:
        """Nobody is suspected."""
        self._one_at_a_time = asyncio.Lock()
        self._suspect: str | None = None

    async def enter(self, job: str, strikes: int) -> None:
        """A job with so many strikes is about to go to the engine: a suspect waits until it is alone."""
        if strikes >= SUSPECT_STRIKES:
            await self._one_at_a_time.acquire()
            self._suspect = job

    def strikes_after(self, job: str, strikes: int) -> int:
        """A job's strikes, now that the engine has ended with it."""
        return strikes + 1 if self._suspect in (None, job) else strikes

    def clear(self, job: str) -> None:
        """The job is suspected no longer. Others are fine."""
        if self._suspect == job:
            self._suspect = None
            self._one_at_a_time.release()
