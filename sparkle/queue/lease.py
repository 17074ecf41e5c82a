"""Owns one job's message: tells the queue that work goes on, then exactly one fate. Knows no engine.

A body that is cancelled or fails without choosing a fate leaves the message alone: the queue hands it to
another worker after its `ack_wait`.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum

from sparkle.config import require_positive
from sparkle.errors import NotConnected, PublishUncertain, TopologyMissing
from sparkle.queue.connection import Connection
from sparkle.queue.delivery import Delivery
from sparkle.queue.stream_age import oldest_stored_s
from sparkle.queue.tries import tries
from sparkle.queue.waiting import until
from sparkle.schemas import subjects
from sparkle.schemas.subjects import JobAddress

log = logging.getLogger(__name__)

PROGRESS = b"+WPI"
_CLOCK_S = 0.001
"""Of one moment the server gives the same time twice, to the nanosecond and, rounded, to the microsecond."""

_NS_PER_S = 1_000_000_000


class Fate(StrEnum):
    """How a lease ends. The value is what the server is told."""

    ACK = "+ACK"  #: done: the job leaves the queue
    NAK = "-NAK"  #: another worker shall have it
    TERM = "+TERM"  #: it leaves the queue, and nobody shall try again


def nak_body(delay_s: float) -> bytes:
    """What hands a message back, to come again after `delay_s`."""
    if delay_s <= 0:
        return Fate.NAK.value.encode()
    return f"{Fate.NAK} {json.dumps({'delay': int(delay_s * _NS_PER_S)})}".encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseSettings:
    """How a lease speaks to the queue."""

    progress_s: float = 10.0
    """How often to say that work goes on; well under the topology's `ack_wait_s`."""

    answer_timeout_s: float = 2.0
    """How long one try waits until the server confirms a fate."""

    give_up_s: float = 20.0
    """How long to try."""

    def __post_init__(self) -> None:
        require_positive(self, "progress_s", "answer_timeout_s", "give_up_s")


class Lease:
    """One delivery of one job, held by this worker until its fate is told."""

    def __init__(
        self, connection: Connection, delivery: Delivery, settings: LeaseSettings | None = None
    ) -> None:
        self.delivery = delivery
        self.settings = settings or LeaseSettings()
        self._connection = connection
        self._generation = connection.generation
        self._attempt = delivery.attempt
        self._fate: Fate | None = None

    @property
    def address(self) -> JobAddress:
        """Where the job stands on the queue. Raises InvalidMessage when its subject is malformed."""
        return JobAddress.parse(self.delivery.subject)

    @property
    def payload(self) -> bytes:
        """The job, not yet decoded."""
        return self.delivery.payload

    @property
    def attempt(self) -> int:
        """Which delivery the work began with, from 1; one adopted later does not change it."""
        return self._attempt

    @property
    def stored_s(self) -> float:
        """When the queue stored the job, Unix time."""
        return self.delivery.stored_s

    @property
    def is_doubtful(self) -> bool:
        """Whether the connection was lost since, so that the stream may be another one."""
        return self._connection.generation != self._generation

    def adopt(self, delivery: Delivery) -> None:
        """The same job came again while it is held here: from now on this delivery speaks for it."""
        assert delivery.subject == self.delivery.subject
        self.delivery = delivery
        self._generation = self._connection.generation

    @property
    def fate(self) -> Fate | None:
        """What was chosen, if anything was."""
        return self._fate

    @asynccontextmanager
    async def hold(self) -> AsyncGenerator[Lease]:
        """While inside, the queue hears every `progress_s` that work goes on."""
        left = asyncio.Event()
        progress = asyncio.create_task(self._progress(left), name="lease-progress")
        try:
            yield self
        finally:
            left.set()
            await asyncio.wait([progress])

    async def ack(self) -> bool:
        """The job is done. False when another fate was chosen before, or the queue has lost the message.

        Raises PublishUncertain, NotConnected or TopologyMissing when the server does not confirm within
        `give_up_s`: the job may come back, and whoever gets it finds its result stored.
        """
        return await self._end(Fate.ACK)

    async def nak(self, delay_s: float = 0.0) -> bool:
        """Another worker shall have it, after `delay_s`. False when another fate was chosen before."""
        return await self._end(Fate.NAK, delay_s=delay_s)

    async def term(self) -> bool:
        """It leaves the queue for good. False when another fate was chosen before."""
        return await self._end(Fate.TERM)

    async def _end(self, fate: Fate, *, delay_s: float = 0.0) -> bool:
        if self._fate is not None:
            return False
        # chosen before the first await, so that of two callers exactly one wins
        self._fate = fate
        body = nak_body(delay_s) if fate is Fate.NAK else fate.value.encode()
        return await tries(self._connection, TopologyMissing, give_up_s=self.settings.give_up_s)(
            self._tell, body
        )

    async def _tell(self, body: bytes) -> bool:
        if await self._void():
            log.warning("lease_void", extra={"attempt": self.attempt})
            return False
        await self._connection.request(
            self.delivery.ack_subject, body, timeout_s=self.settings.answer_timeout_s
        )
        return True

    async def _void(self) -> bool:
        """Whether the stream no longer holds the message.

        A memory stream that was lost counts from 1 again, whether it was declared anew or by itself, so this
        lease's acknowledgement would be another job's. Then all that it holds is younger than the message.
        Only a lost connection can hide that, so only then the server is asked.
        """
        if not self.is_doubtful:
            return False
        asked_in = self._connection.generation
        oldest_s = await oldest_stored_s(self._connection, subjects.JOBS_STREAM)
        if oldest_s is None or oldest_s > self.stored_s + _CLOCK_S:
            return True
        self._generation = asked_in
        return False

    async def _progress(self, left: asyncio.Event) -> None:
        while not await until(left, self.settings.progress_s) and self._fate is None:
            try:
                if not await self._void():
                    await self._connection.publish(self.delivery.ack_subject, PROGRESS)
            except (NotConnected, PublishUncertain):
                log.warning("lease_progress_unsent", extra={"attempt": self.attempt})
