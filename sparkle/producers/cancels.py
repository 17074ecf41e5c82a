"""Cancels jobs that nobody has a handle of, for as long as it takes. Knows neither handles nor outbox."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from sparkle.queue.persist import persist

log = logging.getLogger(__name__)

MAX_PENDING = 10_000
"""Cancels that wait for the queue at once, a kilobyte or two each; any more are let go."""


class Cancels:
    """The cancels of one client that the queue does not hold yet."""

    def __init__(
        self, cancel: Callable[[str, str], Awaitable[None]], *, max_pending: int = MAX_PENDING
    ) -> None:
        """`cancel` gets tenant and job id, tries for a while and raises QueueError."""
        self._cancel = cancel
        self._max_pending = max_pending
        self._pending = 0

    async def tell(self, tenant: str, job: str) -> None:
        """Try, with growing pauses, until the queue holds the cancel."""
        if self._pending >= self._max_pending:
            log.warning("cancel_let_go", extra={"job": job, "pending": self._pending})
            return
        self._pending += 1
        try:
            await persist(self._cancel, tenant, job)
        finally:
            self._pending -= 1
