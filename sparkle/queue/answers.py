"""What comes back to a producer: chunks, lost ones again, the stored end, questions. Knows no outbox."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from typing import TypeVar

from sparkle.errors import ContractError, InvalidMessage, MessageTooLarge, NotAuthentic, UnknownKey
from sparkle.queue.connection import Connection, Envelope, Subscription
from sparkle.queue.envelope import Seal
from sparkle.schemas import subjects
from sparkle.schemas.answer import Chunk, Failure, Result
from sparkle.schemas.answered import Answered, Ask
from sparkle.schemas.codec import decode, encode
from sparkle.schemas.control import Resend
from sparkle.schemas.message import Message

log = logging.getLogger(__name__)

OnChunk = Callable[[Chunk], None]
OnEnd = Callable[[Result | Failure], None]
HasAnswered = Callable[[int], Answered]
"""What has come of an answer from a token on."""

M = TypeVar("M", bound=Message)

STORED_AS_HEADER = "Nats-Subject"
"""On what the server sends on or reads out of a stream: the subject that it was published under."""

_ENDS: tuple[type[Result | Failure], ...] = (Result, Failure)
_HEARD: tuple[type[Chunk | Result | Failure | Ask], ...] = (Chunk, Result, Failure, Ask)


class AnswerFeed:
    """The answers of many jobs over one connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._open: dict[str, Subscription] = {}

    async def open(
        self,
        tenant: str,
        job: str,
        on_chunk: OnChunk,
        on_end: OnEnd,
        key: Seal | None = None,
        *,
        answered: HasAnswered | None = None,
    ) -> None:
        """Hand each chunk and the stored end of a job to the callbacks, in the order of arrival.

        Of a job that was sealed with `key` only what is sealed with it, and failures, which hold no content.
        A worker that asks which tokens are here gets what `answered` says; without it, that there are none,
        and then begins anew. As long as this is open, workers take the job to be waited for.

        Open before the job is published. Both can come twice (a resend, a republish), and chunks can be
        missing: `seq` tells. The stored end comes after all chunks of its attempt that were not lost.
        """

        async def take(envelope: Envelope) -> None:
            try:
                message = _read(envelope, tenant, job, key, *_HEARD)
            except ContractError as error:
                log.warning("answer_refused", extra={"job": job, "error": type(error).__name__})
                return
            if message.job != job:
                log.warning("answer_misplaced", extra={"job": job})
            elif isinstance(message, Chunk):
                on_chunk(message)
            elif isinstance(message, Ask):
                # nowhere else: what we may publish to, whoever makes us do it may not
                if not envelope.reply.startswith(subjects.told(tenant, job, "")):
                    log.warning("answer_misplaced", extra={"job": job})
                    return
                nothing = Answered(job=job, attempt=0, tokens=[])
                told = nothing if answered is None else answered(message.from_index)
                await self._tell(envelope.reply, tenant, told, key)
            else:
                on_end(message)

        await self.close(tenant, job)
        self._open[subjects.reply(tenant, job)] = await self._connection.subscribe(
            subjects.reply(tenant, job), take
        )

    def close(self, tenant: str, job: str) -> Coroutine[None, None, None]:
        """From this call on the job is not open here; await what is returned: then nothing more comes of it.

        Whoever opens the same id anew meanwhile keeps what it opened.
        """
        return _stopped(self._open.pop(subjects.reply(tenant, job), None))

    async def _tell(self, inbox: str, tenant: str, answered: Answered, key: Seal | None) -> None:
        """Send the worker that asked the largest form of it that fits."""
        place = subjects.answered(tenant, answered.job)
        for form in answered.forms():
            try:
                data = encode(form)
                sealed = data if key is None else key.seal(place, data)
                await self._connection.publish(inbox, sealed, headers=None if key is None else key.headers)
            except MessageTooLarge:
                log.info("answered_cut", extra={"job": answered.job})
            else:
                return

    async def stored_end(self, tenant: str, job: str, key: Seal | None = None) -> Result | Failure | None:
        """The job's stored end, or None while there is none (or no longer).

        Raises TopologyMissing, PublishUncertain, NotConnected, and ContractError for what cannot be read.
        """
        subject = subjects.result(tenant, job)
        stored = await self._connection.last_message(subjects.RESULTS_STREAM, subject)
        if stored is None:
            return None
        end = _read(stored, tenant, job, key, *_ENDS)
        if end.job != job:
            raise InvalidMessage("job: not the one of the subject")
        return end

    async def ask_resend(self, worker: str, job: str, attempt: int, from_seq: int) -> None:
        """Ask for the chunks of an attempt from `from_seq` on; they come as chunks do."""
        request = Resend(job=job, attempt=attempt, from_seq=from_seq)
        await self._connection.publish(subjects.resend(worker), encode(request))


async def _stopped(subscription: Subscription | None) -> None:
    if subscription is not None:
        await subscription.stop()


def _read(envelope: Envelope, tenant: str, job: str, key: Seal | None, *expected: type[M]) -> M:
    """The message in it, opened where it is sealed. Raises ContractError."""
    key_id = envelope.headers.get(subjects.KEY_HEADER)
    if key_id is None:
        # without a key a worker can say that it has none, or ask; nothing else is taken in the clear
        return decode(envelope.payload, *(expected if key is None else _in_the_clear(expected)))
    if key is None or key.id != key_id:
        raise UnknownKey("payload: sealed with another key than the job's")
    # the server sends the stored end on the chunks' subject too, and says where it was published
    subject = envelope.headers.get(STORED_AS_HEADER, envelope.subject)
    if subject not in (subjects.reply(tenant, job), subjects.result(tenant, job)):
        raise NotAuthentic("subject: not one of the job's")
    return decode(key.open(subject, envelope.payload), *expected)


def _in_the_clear(expected: tuple[type[M], ...]) -> tuple[type[M], ...]:
    return tuple(kind for kind in expected if kind in (Failure, Ask))
