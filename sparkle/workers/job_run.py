"""One job from delivery to acknowledgement: checked, answered, its end stored, and only then off the queue.

Whatever happens, one of four things comes of it: its end is stored and the message acknowledged (or, where
an operator should look, terminated); or it is a follow-up and its home has taken it; or the message is handed
back to the queue; or, if this process dies, the queue hands it on by itself.
"""

from __future__ import annotations

import asyncio
import logging
import time

from sparkle.engine.frames import Accepted, CancelRequest, Delta, Failed, Finished, Submit
from sparkle.errors import EngineError, EngineExited, FailureCode, QueueError
from sparkle.queue.delivery import Delivery
from sparkle.queue.handover import Way
from sparkle.queue.lease import Lease
from sparkle.queue.persist import persist
from sparkle.schemas.answer import Failure, Result, Usage
from sparkle.schemas.job import Job
from sparkle.schemas.subjects import JobAddress
from sparkle.workers.admission import (
    check_attempt,
    check_deadline,
    check_length,
    open_payload,
    read_job,
    refusal,
)
from sparkle.workers.answer import AnswerSoFar
from sparkle.workers.coalesce import Coalescer
from sparkle.workers.ending import store_end, usage_record
from sparkle.workers.job_times import JobTimes
from sparkle.workers.station import Station

log = logging.getLogger(__name__)

JobEvent = Accepted | Delta | Finished | Failed | CancelRequest
"""What can happen to a running job: frames of its engine, or its producer's cancel."""

_FOR_OPERATORS = (
    *(FailureCode.INVALID_JOB, FailureCode.UNSUPPORTED, FailureCode.POISON_JOB),
    *(FailureCode.UNKNOWN_KEY, FailureCode.NOT_AUTHENTIC, FailureCode.ENCRYPTION_REQUIRED),
)
_MAX_RETRY_DELAY_S = 30.0
# by then this worker takes no more jobs: one given back at once could come straight back to it
_ENGINE_GONE_DELAY_S = 2.0


class JobRun:
    """Owns one lease, and all that is known of its job while it runs here."""

    def __init__(self, station: Station, lease: Lease, address: JobAddress) -> None:
        self.address = address
        self._station = station
        self._lease = lease
        self._events: asyncio.Queue[JobEvent] = asyncio.Queue()
        self._answer = AnswerSoFar(job=address.job, attempt=lease.attempt, worker=station.worker)
        self._coalescer = Coalescer(station.settings.chunk_window_ms / 1000)
        self._times = self._begin_times()
        self._payload = b""
        self._prompt_tokens = 0
        self._in_engine = False

    def happen(self, event: JobEvent) -> None:
        """Something happened to this job; it is dealt with in order."""
        self._events.put_nowait(event)

    def delivered_again(self, delivery: Delivery) -> None:
        """The queue took this worker for dead, or has lost the job and got it anew; it goes on as it is."""
        self._lease.adopt(delivery)

    async def run(self) -> None:
        """Bring the job to its end. Cancelled, or with EngineExited, it hands the job back and raises."""
        async with self._lease.hold():
            try:
                if await self._went_home():
                    return
                end = await self._end()
                if isinstance(end, Failure) and end.retryable:
                    await self._give_back(min(2.0 ** (self._lease.attempt - 1), _MAX_RETRY_DELAY_S))
                else:
                    await self._conclude(end)
            except asyncio.CancelledError:
                await self._give_back(0.0)
                raise
            except EngineExited:
                await self._give_back(_ENGINE_GONE_DELAY_S)
                raise
            finally:
                self._station.seals.let_go(self.address.tenant, self.address.job)

    async def _went_home(self) -> bool:
        """Whether the conversation's home has taken the job, so that its lease is no longer ours."""
        way = await self._station.offers.offer(self._lease)
        if way is not None:
            self._station.metrics.follow_ups.labels(way.value).inc()
        if way is Way.HANDED_OVER:
            return True
        self._station.metrics.deliveries.labels(self.address.priority.value).inc()
        self._times = self._begin_times()
        return False

    async def _end(self) -> Result | Failure | None:
        """The job's end; None if one is stored already."""
        try:
            job = await self._admit()
            return await self._run_in_engine(job) if isinstance(job, Job) else job
        except EngineExited:
            raise
        except EngineError as error:
            return self._refusal(FailureCode.ENGINE_ERROR, str(error))
        # one job must not end the others; its content may be in the text, so only the type is told
        except Exception as error:  # noqa: BLE001
            log.error("job_fault", extra={**self._ids(), "error": type(error).__name__})
            return self._refusal(
                FailureCode.ENGINE_ERROR, f"the worker failed on this job ({type(error).__name__})"
            )

    async def _admit(self) -> Job | Failure | None:
        """The job, if it may start; else its failure, or None if its end is stored already."""
        address, attempt = self.address, self._lease.attempt
        payload = open_payload(self._station.seals, self._lease.delivery, address)
        if isinstance(payload, Failure):
            return payload
        self._payload = payload
        job = read_job(payload, address, attempt)
        if isinstance(job, Failure):
            return job
        refused = (
            check_attempt(address, attempt, self._station.settings.max_deliveries)
            or check_deadline(job, address, attempt, time.time())
            or check_length(job, address, attempt, self._station.engine.ready.max_context_tokens)
        )
        if refused is not None:
            return refused
        replies = self._station.replies
        cancelled, ended = await asyncio.gather(
            persist(replies.is_cancelled, address.tenant, address.job),
            persist(replies.end_stored, address.tenant, address.job),
        )
        if ended:
            return None
        if cancelled:
            return self._refusal(FailureCode.CANCELLED, "cancelled before it started")
        return job

    async def _run_in_engine(self, job: Job) -> Result | Failure:
        """The engine's end of the job, or the deadline's; the engine's slot is free afterwards."""
        left_s = None if job.deadline_ms is None else job.deadline_ms / 1000 - time.time()
        try:
            async with asyncio.timeout(left_s):
                # before the await: should it be cut short, the engine may have the job
                self._in_engine = True
                await self._station.engine.submit(Submit(job=job.id, payload=self._payload))
                return await self._follow()
        except TimeoutError:
            return self._refusal(
                FailureCode.DEADLINE_EXCEEDED,
                f"the deadline passed after {self._answer.num_tokens} tokens of the answer",
            )
        finally:
            if self._in_engine:
                self._station.engine.cancel(job.id)

    async def _follow(self) -> Result | Failure:
        """Send on what the engine writes until it, or the producer, ends the job."""
        while True:
            event = await self._next_event()
            now_s = asyncio.get_running_loop().time()
            match event:
                case None:
                    await self._send(self._coalescer.take_due(now_s))
                case Accepted():
                    self._prompt_tokens = event.prompt_tokens
                case Delta():
                    self._answer.add(event)
                    if event.tokens:
                        self._times.token_came(now_s)
                    await self._send(self._coalescer.add(event, now_s))
                case Finished():
                    self._in_engine = False
                    self._station.metrics.answer_finished(event.drafts, cached_tokens=event.cached_tokens)
                    await self._send(self._coalescer.flush(now_s))
                    return self._result(event, now_s)
                case Failed():
                    self._in_engine = False
                    return self._failure(event.code, event.message, retryable=event.retryable)
                case CancelRequest():
                    return self._refusal(
                        FailureCode.CANCELLED, f"cancelled after {self._answer.num_tokens} tokens"
                    )

    async def _next_event(self) -> JobEvent | None:
        """The next event, or None when held tokens are due before it."""
        try:
            async with asyncio.timeout_at(self._coalescer.due_s):
                return await self._events.get()
        except TimeoutError:
            return None

    async def _send(self, deltas: list[Delta]) -> None:
        for delta in deltas:
            await self._station.replies.send(self.address.tenant, self._answer.chunk(delta))

    async def _conclude(self, end: Result | Failure | None) -> None:
        """Store the end, then take the message off the queue: never the other way round."""
        if end is None:
            log.info("job_already_ended", extra=self._ids())
        else:
            end, stands = await store_end(self._station.replies, self.address.tenant, end)
            if stands:
                await self._account(end)
            else:
                log.info("job_ended_elsewhere", extra=self._ids())
        try:
            if isinstance(end, Failure) and end.code in _FOR_OPERATORS:
                await self._lease.term()
            else:
                await self._lease.ack()
        except QueueError as error:
            # it may come back; whoever gets it finds its end stored
            log.warning("job_ack_uncertain", extra={**self._ids(), "error": type(error).__name__})

    async def _account(self, end: Result | Failure) -> None:
        """Count and log the end, and send its metering record."""
        record = usage_record(
            end, self._used(end), self.address, worker=self._station.worker, unix_s=time.time()
        )
        self._station.metrics.job_ended(record, self._times.first_token_s)
        log.info(
            "job_done",
            extra={
                **self._ids(),
                "outcome": record.outcome.value,
                "prompt_tokens": record.prompt_tokens,
                "cached_tokens": record.cached_tokens,
                "completion_tokens": record.completion_tokens,
                "queue_s": round(record.queue_s, 4),
                "total_s": round(record.total_s, 4),
            },
        )
        await self._station.publish_usage(record)

    async def _give_back(self, delay_s: float) -> None:
        """Hand the message to whoever pulls next; the chunks sent so far can be asked for a while longer."""
        self._station.replies.leave(self.address.job)
        try:
            given = await self._lease.nak(delay_s)
        except QueueError as error:
            log.warning("job_nak_uncertain", extra={**self._ids(), "error": type(error).__name__})
            return
        if given:
            self._station.metrics.handed_back.inc()
            log.info("job_handed_back", extra={**self._ids(), "delay_s": delay_s})

    def _begin_times(self) -> JobTimes:
        return JobTimes.begin(
            stored_s=self._lease.stored_s, unix_s=time.time(), now_s=asyncio.get_running_loop().time()
        )

    def _result(self, finished: Finished, now_s: float) -> Result:
        return self._answer.result(
            finished,
            queue_s=self._times.queue_s,
            first_token_s=self._times.until_first_token_s(now_s),
            total_s=self._times.total_s(now_s),
        )

    def _used(self, end: Result | Failure) -> Usage:
        """What the job took; without an answer, up to now."""
        if isinstance(end, Result):
            return end.usage
        now_s = asyncio.get_running_loop().time()
        return Usage(
            prompt_tokens=self._prompt_tokens,
            completion_tokens=self._answer.num_tokens,
            queue_s=self._times.queue_s,
            first_token_s=self._times.until_first_token_s(now_s),
            total_s=self._times.total_s(now_s),
        )

    def _refusal(self, code: FailureCode, message: str) -> Failure:
        return refusal(self.address, self._lease.attempt, code, message)

    def _failure(self, code: FailureCode, message: str, *, retryable: bool) -> Failure:
        return self._refusal(code, message).model_copy(update={"retryable": retryable})

    def _ids(self) -> dict[str, str | int]:
        return {
            "job": self.address.job,
            "tenant": self.address.tenant,
            "priority": self.address.priority.value,
            "attempt": self._lease.attempt,
        }
