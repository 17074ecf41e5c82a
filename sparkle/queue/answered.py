"""How far a job's answer has come: its producer is asked, or it is stored. Knows no engine."""

from __future__ import annotations

import logging
import secrets

from sparkle.errors import (
    ContractError,
    MessageTooLarge,
    NotConnected,
    PublishUncertain,
    QueueError,
    TopologyMissing,
)
from sparkle.queue.connection import Connection, Envelope
from sparkle.queue.job_seals import JobSeals
from sparkle.schemas import subjects
from sparkle.schemas.answered import Answered, Ask
from sparkle.schemas.codec import decode, encode

log = logging.getLogger(__name__)

ASK_TIMEOUT_S = 1.0
"""A producer that is there answers in milliseconds; one with a million tokens to sort, or frozen, may not."""


class AnswerRecords:
    """What is known of the answers of one worker's jobs outside this worker."""

    def __init__(
        self, connection: Connection, seals: JobSeals | None = None, *, ask_timeout_s: float = ASK_TIMEOUT_S
    ) -> None:
        """What is asked and stored is sealed where `seals` holds the job's key."""
        self._connection = connection
        self._seals = seals or JobSeals()
        self._ask_timeout_s = ask_timeout_s
        self._stored: set[str] = set()

    async def ask(self, tenant: str, job: str, from_index: int) -> Answered | None:
        """The producer's tokens from this one on; None where nobody answers. Raises NotConnected."""
        question = encode(Ask(job=job, from_index=from_index))
        try:
            answer = await self._connection.request_at(
                subjects.told(tenant, job, secrets.token_hex(8)),
                subjects.reply(tenant, job),
                question,
                timeout_s=self._ask_timeout_s,
            )
        except (TopologyMissing, PublishUncertain):
            return None
        return self._read(answer, tenant, job)

    async def stored(self, tenant: str, job: str) -> Answered | None:
        """What an earlier worker stored. Raises TopologyMissing, PublishUncertain, NotConnected."""
        subject = subjects.answered(tenant, job)
        message = await self._connection.last_message(subjects.ANSWERED_STREAM, subject)
        if message is None or not message.payload:
            return None
        self._stored.add(subject)
        return self._read(message, tenant, job)

    async def store(self, tenant: str, answered: Answered) -> None:
        """Keep it, or the largest form of it that fits, in place of what was stored before.

        It is for the worker that goes on. A failure is only logged: without it that one writes the same
        tokens again.
        """
        subject = subjects.answered(tenant, answered.job)
        # before it is: whoever is cancelled meanwhile, or hears nothing, may have stored it
        self._stored.add(subject)
        for form in answered.forms():
            try:
                data, headers = self._seals.seal(tenant, answered.job, subject, encode(form))
                await self._connection.publish_stored(subject, data, headers=headers)
            except MessageTooLarge:
                log.info("answered_cut", extra={"job": answered.job})
            except QueueError as error:
                log.warning("answered_unstored", extra={"job": answered.job, "error": type(error).__name__})
                return
            else:
                return

    async def clear(self, tenant: str, job: str) -> None:
        """The job has its end: what is stored of its answer goes now, not with its age.

        Where it cannot be sent that is only logged: the end stands, and its message is to be acknowledged.
        """
        subject = subjects.answered(tenant, job)
        if subject not in self._stored:
            return
        self._stored.discard(subject)
        try:
            # one message a subject: an empty one takes the place of the content
            await self._connection.publish(subject, b"")
        except NotConnected:
            log.warning("answered_uncleared", extra={"job": job})

    def leave(self, tenant: str, job: str) -> None:
        """The job goes on elsewhere: what is stored of it is another worker's to clear."""
        self._stored.discard(subjects.answered(tenant, job))

    def _read(self, message: Envelope, tenant: str, job: str) -> Answered | None:
        """The record in a message; None where it is none, as of a producer that is no client of ours."""
        try:
            data = self._seals.open_answer(tenant, job, subjects.answered(tenant, job), message)
            answered = decode(data, Answered)
        except ContractError as error:
            log.warning("answered_refused", extra={"job": job, "error": type(error).__name__})
            return None
        return answered if answered.job == job else None
