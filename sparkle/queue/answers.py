"""What comes back to a producer: chunks as they come, the stored end, lost chunks again. Knows no outbox."""

from __future__ import annotations

import logging
from collections.abc import Callable

from sparkle.errors import ContractError
from sparkle.queue.connection import Connection, Envelope, Subscription
from sparkle.schemas import subjects
from sparkle.schemas.answer import Chunk, Failure, Result
from sparkle.schemas.codec import decode, encode
from sparkle.schemas.control import Resend

log = logging.getLogger(__name__)

OnChunk = Callable[[Chunk], None]
OnEnd = Callable[[Result | Failure], None]

_ENDS: tuple[type[Result | Failure], ...] = (Result, Failure)
_ANSWERS: tuple[type[Chunk | Result | Failure], ...] = (Chunk, Result, Failure)


class AnswerFeed:
    """The answers of many jobs over one connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._open: dict[str, Subscription] = {}

    async def open(self, tenant: str, job: str, on_chunk: OnChunk, on_end: OnEnd) -> None:
        """Hand each chunk and the stored end of a job to the callbacks, in the order of arrival.

        Open before the job is published. Both can come twice (a resend, a republish), and chunks can be
        missing: `seq` tells. The stored end comes after all chunks of its attempt that were not lost.
        """

        async def take(envelope: Envelope) -> None:
            try:
                message = decode(envelope.payload, *_ANSWERS)
            except ContractError as error:
                log.warning("answer_refused", extra={"job": job, "error": type(error).__name__})
                return
            if message.job != job:
                log.warning("answer_misplaced", extra={"job": job})
            elif isinstance(message, Chunk):
                on_chunk(message)
            else:
                on_end(message)

        await self.close(tenant, job)
        self._open[subjects.reply(tenant, job)] = await self._connection.subscribe(
            subjects.reply(tenant, job), take
        )

    async def close(self, tenant: str, job: str) -> None:
        """Hand over nothing more of this job."""
        subscription = self._open.pop(subjects.reply(tenant, job), None)
        if subscription is not None:
            await subscription.stop()

    async def stored_end(self, tenant: str, job: str) -> Result | Failure | None:
        """The job's stored end, or None while there is none (or no longer).

        Raises TopologyMissing, PublishUncertain, NotConnected.
        """
        data = await self._connection.last_stored(subjects.RESULTS_STREAM, subjects.result(tenant, job))
        if data is None:
            return None
        return decode(data, *_ENDS)

    async def ask_resend(self, worker: str, job: str, attempt: int, from_seq: int) -> None:
        """Ask for the chunks of an attempt from `from_seq` on; they come as chunks do."""
        request = Resend(job=job, attempt=attempt, from_seq=from_seq)
        await self._connection.publish(subjects.resend(worker), encode(request))
