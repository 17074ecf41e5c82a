"""Carries out the outbox's steps and brings answers to their handles. Knows no job's content."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from functools import partial

from sparkle.errors import (
    ContractError,
    FailureCode,
    InvalidMessage,
    JobFailed,
    NotConnected,
    QueueError,
    QueueFull,
    SparkleError,
    TopologyMissing,
)
from sparkle.producers.answer_order import Gap
from sparkle.producers.cancels import Cancels
from sparkle.producers.handle import Handle
from sparkle.producers.homes import Homes
from sparkle.producers.loss_watch import LossWatch
from sparkle.producers.outbox import Look, Outbox, Publish, Step
from sparkle.producers.settings import ClientSettings
from sparkle.producers.share import Share
from sparkle.queue.answers import AnswerFeed
from sparkle.queue.connection import Connection
from sparkle.queue.envelope import Seal
from sparkle.queue.key_ring import KeyRing
from sparkle.queue.outgoing import JobPublisher, Publication, PublishSettings
from sparkle.schemas.answer import Chunk, Failure, Result
from sparkle.schemas.job import Job
from sparkle.schemas.priority import PriorityClass

log = logging.getLogger(__name__)

ONE_TRY_S = 0.001
"""The publisher tries once: it is the outbox that tries again."""


@dataclass(slots=True)
class _Open:
    """A job without an end."""

    job: Job
    tenant: str
    priority: PriorityClass
    handle: Handle
    key: Seal | None
    """What the job is sealed with, each time that it is published."""

    accepted: asyncio.Future[None]
    """Done once the queue holds the job or the handle has its end; else the error that refused it."""

    step: asyncio.Task[None] | None = None
    """The outbox's step that is being taken."""

    def accept(self) -> None:
        if not self.accepted.done():
            self.accepted.set_result(None)


class Dispatcher:
    """The open jobs of one connection."""

    def __init__(self, connection: Connection, settings: ClientSettings, keys: KeyRing | None = None) -> None:
        """Starts nothing; `start` does. With keys all jobs are sealed."""
        self._connection = connection
        self._keys = keys
        one_try = PublishSettings(answer_timeout_s=settings.publish_timeout_s, give_up_s=ONE_TRY_S)
        self._publisher = JobPublisher(connection, one_try)
        self._canceller = JobPublisher(connection)
        self._cancels = Cancels(self._canceller.cancel)
        self._feed = AnswerFeed(connection)
        self._outbox = Outbox(settings.timing, random.random)
        self._losses = LossWatch(connection, settings.region)
        self._share = Share(settings.max_waiting)
        self._homes = Homes(settings.conversation_s)
        self._redeclare_wait_s = settings.redeclare_wait_s
        self._back_s = -settings.redeclare_wait_s
        self._open: dict[str, _Open] = {}
        self._wake = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Begin to take the outbox's steps."""
        self._connection.on_reconnect(self._reconnected)
        self._spawn(self._run())
        self._spawn(self._watch_connection())

    async def close(self) -> None:
        """End every open handle with NotConnected and stop."""
        self._end_all(
            NotConnected("the client was closed before the end came; the job goes on, submit its id again")
        )
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def dispatch(self, job: Job, tenant: str, priority: PriorityClass) -> Handle:
        """The job's handle, once the queue holds the job. An id that is open already gives the same handle.

        Raises TenantOverShare, QueueFull, MessageTooLarge, TopologyMissing, NotConnected once the connection
        has ended, InvalidMessage for an id that is open with other fields, and UnknownKey where the tenant
        has no key.
        """
        entry = self._open.get(job.id)
        if entry is not None:
            if entry.job != job:
                raise InvalidMessage(f"id: {job.id} is open with other fields; give each job its own id")
            await asyncio.shield(entry.accepted)
            return entry.handle
        entry = await self._admit(job, tenant, priority)
        try:
            await asyncio.shield(entry.accepted)
        except asyncio.CancelledError:
            # the caller gave up: nobody has the handle, so nobody could cancel the job later
            self._fail(job.id, _cancelled())
            self._spawn(self._cancels.tell(tenant, job.id))
            raise
        return entry.handle

    async def end_conversation(self, tenant: str, conversation: str) -> None:
        """Forget a conversation here and at all workers. Raises InvalidMessage, NotConnected."""
        self._homes.ended(tenant, conversation)
        await self._canceller.end_conversation(tenant, conversation)

    async def _admit(self, job: Job, tenant: str, priority: PriorityClass) -> _Open:
        key = None if self._keys is None else self._keys.newest(tenant)
        self._share.take(tenant, job.id)
        handle = Handle(
            job.id,
            ask_resend=partial(self._resend_wanted, job.id),
            cancel=partial(self._cancel, tenant, job.id),
        )
        loop = asyncio.get_running_loop()
        entry = _Open(job, tenant, priority, handle, key, accepted=loop.create_future())
        self._open[job.id] = entry
        try:
            # before the publish, so that no chunk is missed
            await self._feed.open(
                tenant,
                job.id,
                partial(self._on_chunk, entry),
                partial(self._end, job.id),
                key,
                answered=handle.answered,
            )
        except BaseException as error:
            # who submitted the same id meanwhile waits for this entry
            self._fail(job.id, error if isinstance(error, SparkleError) else _cancelled())
            raise
        if job.id not in self._open:
            # the client or its connection ended meanwhile, and the entry has been told
            return entry
        deadline_s = None if job.deadline_ms is None else loop.time() + job.deadline_ms / 1000 - time.time()
        self._outbox.add(job.id, now_s=loop.time(), deadline_s=deadline_s)
        self._wake.set()
        return entry

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._wake.clear()
            for step in self._outbox.due(loop.time()):
                self._take(step)
            try:
                async with asyncio.timeout_at(self._outbox.next_due_s()):
                    await self._wake.wait()
            except TimeoutError:
                continue

    def _take(self, step: Step) -> None:
        entry = self._open[step.job]
        if isinstance(step, Publish):
            entry.step = self._spawn(self._publish(entry, step.publication))
        elif isinstance(step, Look):
            entry.step = self._spawn(self._look(entry))
        else:
            passed = "the deadline passed before the end came; give the job more time"
            self._fail(step.job, JobFailed(FailureCode.DEADLINE_EXCEEDED, passed, retryable=False))

    async def _publish(self, entry: _Open, publication: int) -> None:
        job, loop = entry.job.id, asyncio.get_running_loop()
        if self._losses.runs(job):
            self._outbox.already_queued(job, loop.time())
            return
        try:
            home = self._homes.of(entry.tenant, entry.job.conversation, now_s=loop.time())
            outcome = await self._publisher.publish(
                entry.job, entry.priority, publication=publication, home=home, key=entry.key
            )
        except SparkleError as error:
            if not entry.accepted.done() and self._is_final(error):
                self._refuse(entry, error)
            else:
                log.debug("publish_again", extra={"job": job, "error": type(error).__name__})
                self._outbox.again(job, loop.time())
        else:
            if outcome is Publication.STORED:
                self._outbox.stored(job, loop.time())
            else:
                self._outbox.already_queued(job, loop.time())
            entry.accept()
        self._wake.set()

    def _is_final(self, error: SparkleError) -> bool:
        """Whether another try of a new job would not help soon."""
        if isinstance(error, TopologyMissing):
            # a server that has just come back may be empty, and its streams about to be declared again
            return asyncio.get_running_loop().time() - self._back_s > self._redeclare_wait_s
        return isinstance(error, ContractError | QueueFull) or self._connection.closed.is_set()

    async def _look(self, entry: _Open) -> None:
        job, loop = entry.job.id, asyncio.get_running_loop()
        try:
            end = await self._feed.stored_end(entry.tenant, job, entry.key)
        except QueueError as error:
            log.debug("look_again", extra={"job": job, "error": type(error).__name__})
            self._outbox.again(job, loop.time())
        except ContractError as error:
            self._fail(job, error)
        else:
            if end is None:
                self._outbox.missing(job, loop.time())
            else:
                self._end(job, end)
        self._wake.set()

    def _on_chunk(self, entry: _Open, chunk: Chunk) -> None:
        now_s = asyncio.get_running_loop().time()
        self._outbox.sign_of_life(chunk.job, now_s)
        self._share.give_back(chunk.job)
        if chunk.seq == 0:
            # an answer that is cancelled, or not awaited by the next question, leaves its state there as well
            self._homes.answered(entry.tenant, entry.job.conversation, chunk.worker, now_s=now_s)
        entry.accept()
        entry.handle.on_chunk(chunk)

    def _end(self, job: str, end: Result | Failure) -> None:
        if entry := self._forget(job):
            if isinstance(end, Result):
                now_s = asyncio.get_running_loop().time()
                self._homes.answered(entry.tenant, entry.job.conversation, end.worker, now_s=now_s)
            entry.accept()
            entry.handle.on_end(end)

    def _fail(self, job: str, error: SparkleError) -> None:
        if entry := self._forget(job):
            entry.accept()
            entry.handle.fail(error)

    def _refuse(self, entry: _Open, error: SparkleError) -> None:
        if not entry.accepted.done():
            entry.accepted.set_exception(error)
        self._fail(entry.job.id, error)

    def _forget(self, job: str) -> _Open | None:
        """Take the job out; its subscription ends before whoever waits for the end goes on."""
        self._outbox.remove(job)
        self._share.give_back(job)
        entry = self._open.pop(job, None)
        if entry is not None:
            # a publish that waits for the server would bring the job back
            if entry.step is not None and entry.step is not asyncio.current_task():
                entry.step.cancel()
            self._spawn(self._feed.close(entry.tenant, job))
            self._spawn(self._losses.forget(job))
        return entry

    def _end_all(self, error: SparkleError) -> None:
        for entry in list(self._open.values()):
            self._refuse(entry, error)

    async def _watch_connection(self) -> None:
        await self._connection.closed.wait()
        self._end_all(NotConnected("the connection ended for good before the job's end came; connect anew"))

    def _reconnected(self) -> None:
        self._back_s = asyncio.get_running_loop().time()
        self._outbox.reconnected(self._back_s)
        self._spawn(self._watch_losses())
        self._wake.set()

    async def _watch_losses(self) -> None:
        try:
            await self._losses.begin(self._open)
        except NotConnected:
            # closed for good: every handle is told so
            return

    async def _cancel(self, tenant: str, job: str) -> None:
        await self._canceller.cancel(tenant, job)
        self._fail(job, _cancelled())

    def _resend_wanted(self, job: str, gap: Gap) -> None:
        self._spawn(self._ask_resend(job, gap))

    async def _ask_resend(self, job: str, gap: Gap) -> None:
        try:
            await self._feed.ask_resend(gap.worker, job, gap.attempt, gap.from_seq)
        except QueueError as error:
            log.debug("resend_not_asked", extra={"job": job, "error": type(error).__name__})

    def _spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _cancelled() -> JobFailed:
    return JobFailed(FailureCode.CANCELLED, "cancelled by its producer", retryable=False)
