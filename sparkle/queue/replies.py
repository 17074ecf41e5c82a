"""What a worker sends back: chunks at once, lost ones again, the end stored. Knows no engine."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass

from sparkle.config import require_positive
from sparkle.errors import NotConnected, QueueFull, TopologyMissing
from sparkle.queue.allowance import Allowance
from sparkle.queue.connection import Connection, Envelope, Subscription
from sparkle.queue.job_seals import JobSeals
from sparkle.queue.kept import KeptChunks
from sparkle.queue.stored import StoreOutcome
from sparkle.queue.storing import store
from sparkle.schemas import subjects
from sparkle.schemas.answer import Chunk, Failure, Result
from sparkle.schemas.codec import decode, encode
from sparkle.schemas.control import Resend

log = logging.getLogger(__name__)

_LATER_S = 0.1
"""By then the time that chunks are kept is over for certain."""

_LEAST_BYTES = 1024
"""What a chunk that is sent again counts for at least: even an empty one costs time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplySettings:
    """How long answers are kept and stored."""

    keep_s: float = 60.0
    """How long a job's chunks are kept after its end."""

    keep_max_bytes: int = 256 * 1024 * 1024
    """What is kept at most, over all jobs."""

    resend_bytes_per_s: float = 8 * 1024 * 1024
    """What is sent again at most, over all jobs, each chunk counted as a kilobyte at least.

    So no one asking holds up the answers, and whoever was away is not sent all that it missed at once: a
    server ends the connection of a client for whom too much waits, and that one would be away again.
    """

    answer_timeout_s: float = 3.0
    """How long one try to store an end waits for the acknowledgement."""

    give_up_s: float = 30.0
    """How long to try."""

    def __post_init__(self) -> None:
        require_positive(
            self, "keep_s", "keep_max_bytes", "resend_bytes_per_s", "answer_timeout_s", "give_up_s"
        )


class ReplyStream:
    """The answers of all jobs of one worker."""

    def __init__(
        self,
        connection: Connection,
        worker: str,
        settings: ReplySettings | None = None,
        seals: JobSeals | None = None,
    ) -> None:
        """Answers are sealed where `seals` holds the job's key."""
        self._connection = connection
        self._worker = worker
        self._settings = settings or ReplySettings()
        self._seals = seals or JobSeals()
        self._kept = KeptChunks(max_bytes=self._settings.keep_max_bytes, after_end_s=self._settings.keep_s)
        self._resends = Allowance(self._settings.resend_bytes_per_s, now_s=time.monotonic())
        self._subscription: Subscription | None = None

    async def start(self) -> None:
        """Answer requests for lost chunks from now on. Raises NotConnected."""
        self._subscription = await self._connection.subscribe(subjects.resend(self._worker), self._resend)

    async def stop(self) -> None:
        """Answer no more requests."""
        if self._subscription is not None:
            await self._subscription.stop()
            self._subscription = None

    async def send(self, tenant: str, chunk: Chunk) -> None:
        """Send a chunk without waiting for anybody, and keep it. Raises MessageTooLarge.

        With the server away for long the chunk is not sent, only kept: whoever misses it asks for it.
        """
        subject = subjects.reply(tenant, chunk.job)
        data, headers = self._seals.seal(tenant, chunk.job, subject, encode(chunk))
        sent = (subject, data, headers)
        self._kept.add(chunk.job, chunk.attempt, chunk.seq, sent, now_s=time.monotonic())
        try:
            await self._connection.publish(subject, data, headers=headers)
        except NotConnected:
            log.debug("chunk_unsent", extra={"job": chunk.job, "seq": chunk.seq})

    async def store_end(self, tenant: str, end: Result | Failure) -> bool:
        """Store the end of a job, unless it has one: the first stands. Whether the one that stands is this.

        Raises MessageTooLarge, and, after `give_up_s`, QueueFull, TopologyMissing, PublishUncertain or
        NotConnected: the job's message must then go back to the queue.
        """
        subject = subjects.result(tenant, end.job)
        plain = encode(end)
        data, sealed = self._seals.seal(tenant, end.job, subject, plain)
        headers = {
            **sealed,
            "Nats-Expected-Last-Subject-Sequence": "0",
            "Nats-Expected-Stream": subjects.RESULTS_STREAM,
        }
        outcome = await store(
            self._connection,
            subject,
            data,
            headers,
            also=(TopologyMissing, QueueFull),
            answer_timeout_s=self._settings.answer_timeout_s,
            give_up_s=self._settings.give_up_s,
        )
        self.leave(end.job)
        if outcome is not StoreOutcome.SUBJECT_TAKEN:
            return True
        # refused also when an earlier try of our own was stored and its acknowledgement lost
        stored = await self._connection.last_stored(subjects.RESULTS_STREAM, subject)
        return stored is not None and self._seals.is_sealed(tenant, end.job, subject, plain, stored)

    def leave(self, job: str) -> None:
        """The job has ended here, stored or handed back: its chunks go after `keep_s`."""
        self._kept.end(job, now_s=time.monotonic())
        # also where no other job comes to make room
        asyncio.get_running_loop().call_later(self._settings.keep_s + _LATER_S, self._let_go)

    @property
    def kept_bytes(self) -> int:
        """Bytes of chunks that can be asked for again."""
        return self._kept.size_bytes

    def _let_go(self) -> None:
        self._kept.trim(now_s=time.monotonic())

    async def end_stored(self, tenant: str, job: str) -> bool:
        """Whether the job has an end already. Raises TopologyMissing, PublishUncertain, NotConnected."""
        stored = await self._connection.last_stored(subjects.RESULTS_STREAM, subjects.result(tenant, job))
        return stored is not None

    async def is_cancelled(self, tenant: str, job: str) -> bool:
        """Whether the job has a tombstone. Raises TopologyMissing, PublishUncertain, NotConnected."""
        stored = await self._connection.last_stored(subjects.CONTROL_STREAM, subjects.cancel(tenant, job))
        return stored is not None

    async def _resend(self, envelope: Envelope) -> None:
        wanted = decode(envelope.payload, Resend)
        now_s = time.monotonic()
        # whoever does not get all, or nothing, asks again, and has the stored end at last
        if not self._resends.is_left(now_s):
            log.debug("resend_refused", extra={"job": wanted.job})
            return
        self._kept.trim(now_s=now_s)
        # to where they went before: only the job's own tenant gets them, whoever asked
        for subject, data, headers in self._kept.since(wanted.job, wanted.attempt, wanted.from_seq):
            self._resends.spend(max(len(data), _LEAST_BYTES))
            await self._connection.publish(subject, data, headers=headers)
            if not self._resends.is_left(now_s):
                break
