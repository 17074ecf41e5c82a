"""Whether a failed publish of a new job is the caller's to know or worth another try. Knows no outbox."""

from __future__ import annotations

import asyncio

from sparkle.errors import ContractError, QueueFull, SparkleError, TopologyMissing
from sparkle.queue.answers import AnswerFeed
from sparkle.queue.connection import Connection


class Refusals:
    """One connection's recent past, as far as it explains why a publish failed."""

    def __init__(self, connection: Connection, feed: AnswerFeed, *, leader_wait_s: float) -> None:
        self._connection = connection
        self._feed = feed
        self._leader_wait_s = leader_wait_s
        self._back_s = -leader_wait_s
        self._missing_since_s: dict[str, float] = {}

    def reconnected(self) -> None:
        """The connection is back; the server may be empty, and its streams about to be declared again."""
        self._back_s = asyncio.get_running_loop().time()

    def forget(self, job: str) -> None:
        """The job is accepted or has its end."""
        self._missing_since_s.pop(job, None)

    async def is_final(self, tenant: str, job: str, error: SparkleError) -> bool:
        """Whether another try would not help soon."""
        if isinstance(error, TopologyMissing):
            return await self._is_missing(tenant, job)
        return isinstance(error, ContractError | QueueFull) or self._connection.closed.is_set()

    async def _is_missing(self, tenant: str, job: str) -> bool:
        """Whether the jobs' stream is not there, rather than without a leader or not declared again yet."""
        now_s = asyncio.get_running_loop().time()
        if now_s - self._missing_since_s.setdefault(job, now_s) > self._leader_wait_s:
            return True
        return now_s - self._back_s > self._leader_wait_s and not await self._results_are_there(tenant, job)

    async def _results_are_there(self, tenant: str, job: str) -> bool:
        """Whether the other stream answers: then the jobs' stream only has no leader for the moment."""
        try:
            await self._feed.stored_end(tenant, job)
        except TopologyMissing:
            return False
        except SparkleError:
            return True
        return True
