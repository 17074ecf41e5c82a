"""Puts jobs, cancels and ends of conversations on the queue. Knows no outbox: one call is one publication."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pydantic import ValidationError

from sparkle.config import require_positive
from sparkle.errors import InvalidMessage
from sparkle.queue.connection import Connection
from sparkle.queue.envelope import Seal
from sparkle.queue.stored import StoreOutcome
from sparkle.queue.storing import store
from sparkle.schemas import subjects
from sparkle.schemas.codec import describe, encode
from sparkle.schemas.control import Cancel, EndConversation
from sparkle.schemas.job import Job
from sparkle.schemas.priority import PriorityClass
from sparkle.schemas.subjects import JobAddress


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishSettings:
    """How patient a publish is."""

    answer_timeout_s: float = 3.0
    """How long one try waits for the acknowledgement."""

    give_up_s: float = 8.0
    """How long to try: longer than a cluster takes for a new leader (6 s)."""

    def __post_init__(self) -> None:
        require_positive(self, "answer_timeout_s", "give_up_s")


class Publication(StrEnum):
    """Where a published job stands."""

    STORED = "stored"  #: the queue has added the job
    ALREADY_QUEUED = "already_queued"  #: nothing added: the job waits, is in work, or has lately ended


class JobPublisher:
    """Publishes jobs, cancels and ends of conversations over one connection."""

    def __init__(self, connection: Connection, settings: PublishSettings | None = None) -> None:
        self._connection = connection
        self._settings = settings or PublishSettings()

    async def publish(
        self,
        job: Job,
        priority: PriorityClass,
        *,
        publication: int,
        home: str | None = None,
        key: Seal | None = None,
    ) -> Publication:
        """Store the job; `publication` counts from 1 and names this publication on every try.

        `home` is the worker that may hold the state of the job's conversation: it is asked first. With a
        key the job is sealed.

        Raises QueueFull, MessageTooLarge, TopologyMissing (no stream holds the region), InvalidMessage for
        a job without tenant or region, and, after `give_up_s`, PublishUncertain (it may be stored) or
        NotConnected (it was not).
        """
        if job.tenant is None or job.region is None:
            raise InvalidMessage("tenant, region: missing; the client fills them in before it publishes")
        headers = {
            # with the tenant, so that nobody's choice of ids can make another's job a double
            "Nats-Msg-Id": f"{job.tenant}:{job.id}:{publication}",
            "Nats-Expected-Stream": subjects.JOBS_STREAM,
        }
        if job.traceparent is not None:
            headers[subjects.TRACE_HEADER] = job.traceparent
        if publication > 1:
            headers[subjects.PUBLICATION_HEADER] = str(publication)
        if home is not None:
            headers[subjects.HOME_HEADER] = home
        address = JobAddress(job.region, priority, job.tenant, job.id)
        payload = encode(job)
        if key is not None:
            payload = key.seal(address.subject, payload)
            headers |= key.headers
        outcome = await self._store(address.subject, payload, headers)
        return Publication.STORED if outcome is StoreOutcome.STORED else Publication.ALREADY_QUEUED

    async def cancel(self, tenant: str, job_id: str) -> None:
        """Tell running workers and leave a tombstone for those to come. Raises what `publish` raises."""
        headers = {"Nats-Expected-Stream": subjects.CONTROL_STREAM}
        await self._store(subjects.cancel(tenant, job_id), encode(Cancel(job=job_id)), headers)

    async def end_conversation(self, tenant: str, conversation: str) -> None:
        """Tell all workers to forget a conversation; one that is away does so later by itself.

        Raises InvalidMessage for a malformed id, NotConnected once the connection has ended for good.
        """
        try:
            end = EndConversation(conversation=conversation)
        except ValidationError as error:
            raise InvalidMessage(describe(error)) from None
        await self._connection.publish(subjects.end_conversation(tenant, conversation), encode(end))

    async def _store(self, subject: str, payload: bytes, headers: dict[str, str]) -> StoreOutcome:
        return await store(
            self._connection,
            subject,
            payload,
            headers,
            answer_timeout_s=self._settings.answer_timeout_s,
            give_up_s=self._settings.give_up_s,
        )
