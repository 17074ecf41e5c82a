"""One job from delivery to acknowledgement: checked, answered, its end stored, and only then off the queue.

Whatever happens, one of four things comes of it: its end is stored and the message acknowledged (or, where
an operator should look, terminated); or it is a follow-up and its home has taken it; or the message is handed
back to the queue; or, if this process dies, the queue hands it on by itself.
"""

from __future__ import annotations

import asyncio
import logging

from sparkle.errors import EngineError, EngineExited, FailureCode, QueueError
from sparkle.queue.delivery import Delivery
from sparkle.queue.handover import Way
from sparkle.queue.lease import Lease
from sparkle.queue.persist import persist
from sparkle.schemas.answer import Failure, Result, Usage
from sparkle.schemas.control import UsageRecord
from sparkle.schemas.job import Job
from sparkle.schemas.subjects import JobAddress
from sparkle.workers.admission import (
    check_deadline,
    check_deliveries,
    check_length,
    open_payload,
    read_job,
    refusal,
    retry_delay_s,
)
from sparkle.workers.answering import Answering, EngineEnded, JobEvent, used_so_far
from sparkle.workers.ending import store_end, usage_record
from sparkle.workers.job_times import JobTimes
from sparkle.workers.known import NOTHING, Known, known_of
from sparkle.workers.probation import MAX_STRIKES
from sparkle.workers.station import Station

log = logging.getLogger(__name__)

_FOR_OPERATORS = (
    *(FailureCode.INVALID_JOB, FailureCode.UNSUPPORTED, FailureCode.POISON_JOB),
    *(FailureCode.UNKNOWN_KEY, FailureCode.NOT_AUTHENTIC, FailureCode.ENCRYPTION_REQUIRED),
)


class JobRun:
    """Owns one lease, and all that is known of its job while it runs here."""

    def __init__(self, station: Station, lease: Lease, address: JobAddress) -> None:
        self.address = address
        self._station = station
        self._lease = lease
        self._events: asyncio.Queue[JobEvent] = asyncio.Queue()
        self._attempt = lease.attempt
        self._answering: Answering | None = None
        self._strikes: int | None = None
        self._had_strikes = False
        self.is_ending = False
        """Whether its end is known and being stored: it needs no engine any more."""
        self._times = self._begin_times()
        self._payload = b""

    @property
    def ack_subject(self) -> str:
        """Where the fate of the job's message is told."""
        return self._lease.delivery.ack_subject

    def happen(self, event: JobEvent) -> None:
        """Something happened to this job; it is dealt with in order."""
        self._events.put_nowait(event)

    def delivered_again(self, delivery: Delivery) -> None:
        """The queue took this worker for dead, or has lost the job and got it anew; it goes on as it is."""
        self._lease.adopt(delivery)

    def engine_ended(self) -> bool:
        """The engine has ended; whether the job was in it, and will now find its own way."""
        if self._answering is None or not self._answering.in_engine:
            return False
        job = self.address.job
        self._strikes = self._station.probation.strikes_after(job, self._answering.strikes)
        self.happen(EngineEnded())
        return True

    async def run(self) -> None:
        """Bring the job to its end; where its engine has ended, or it is cancelled, hand it back."""
        async with self._lease.hold():
            try:
                await self._to_its_end()
            except asyncio.CancelledError:
                await self._give_back(0.0)
                raise
            finally:
                self._station.seals.let_go(self.address.tenant, self.address.job)

    async def _to_its_end(self) -> None:
        try:
            if await self._went_home():
                return
            end = await self._end()
            if isinstance(end, Failure) and end.retryable:
                await self._give_back(retry_delay_s(self._lease.attempt))
            else:
                await self._conclude(end)
        except EngineExited:
            await self._without_engine()

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
            if not isinstance(job, Job):
                return job
            known = await self._known(job) if self._lease.delivery.is_repeated else NOTHING
            self._attempt = max(self._attempt, known.attempt + 1)
            self._had_strikes = known.strikes > 0
            refused = check_deliveries(
                self.address, self._lease.attempt, known.attempt, self._station.settings.max_deliveries
            )
            return refused or await self._answer(job, known)
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
        refused = check_deadline(job, address, attempt, self._station.unix_s()) or check_length(
            job, address, attempt, self._station.engine.ready.max_context_tokens
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

    async def _known(self, job: Job) -> Known:
        """What earlier attempts wrote of the answer."""
        records, address = self._station.records, self.address
        asked, stored = await asyncio.gather(
            persist(records.ask, address.tenant, address.job, 0),
            persist(records.stored, address.tenant, address.job),
        )
        known = known_of(job, asked, stored)
        log.info(
            "job_resumed",
            extra={**self._ids(), "tokens": len(known.tokens), "producer_there": asked is not None},
        )
        self._station.metrics.resumed.inc()
        return known

    async def _answer(self, job: Job, known: Known) -> Result | Failure:
        """The engine's end of the job."""
        self._answering = Answering(
            self._station,
            job,
            self._payload,
            self._events,
            self._times,
            tenant=self.address.tenant,
            attempt=self._attempt,
            known=known,
        )
        return await self._answering.run()

    async def _conclude(self, end: Result | Failure | None) -> None:
        """Store the end, then take the message off the queue: never the other way round."""
        self.is_ending = True
        if end is None:
            log.info("job_already_ended", extra=self._ids())
            await self._clear_record()
        else:
            if self._station.settings.metered:
                # before the end: whoever gets the job again finds the end, and knows no more what it used
                await persist(self._station.store_usage, self._usage_record(end))
            end, stands = await store_end(self._station.replies, self.address.tenant, end)
            await self._station.records.clear(self.address.tenant, self.address.job)
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

    async def _clear_record(self) -> None:
        """Of an end that another attempt stored: it may have been cut short before it cleared its record."""
        if self._lease.delivery.is_repeated:
            await persist(self._station.records.stored, self.address.tenant, self.address.job)
            await self._station.records.clear(self.address.tenant, self.address.job)

    async def _account(self, end: Result | Failure) -> None:
        """Count and log the end, and send its metering record if that is not stored already."""
        record = self._usage_record(end)
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
        if not self._station.settings.metered:
            await self._station.publish_usage(record)

    def _usage_record(self, end: Result | Failure) -> UsageRecord:
        return usage_record(
            end, self._used(end), self.address, worker=self._station.worker, unix_s=self._station.unix_s()
        )

    async def _without_engine(self) -> None:
        """The engine ended with this job in it: another one may do better, but not for ever."""
        if (self._strikes or 0) < MAX_STRIKES:
            await self._give_back(0.0)
            return
        reason = f"{self._strikes} times in a row the engine ended with this job in it; not tried again"
        await self._conclude(self._refusal(FailureCode.POISON_JOB, reason))

    async def _give_back(self, delay_s: float) -> None:
        """Hand the message to whoever pulls next; the chunks sent so far can be asked for a while longer."""
        if self._answering is not None:
            await self._answering.flush()
            strikes = self._answering.strikes if self._strikes is None else self._strikes
            # behind an end that may stand already nothing is to be kept
            if not self.is_ending and (strikes or self._had_strikes or self._answering.is_unheard):
                await self._station.records.store(self.address.tenant, self._answering.record(strikes))
        self._station.replies.leave(self.address.job)
        self._station.records.leave(self.address.tenant, self.address.job)
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
            stored_s=self._lease.stored_s,
            unix_s=self._station.unix_s(),
            now_s=asyncio.get_running_loop().time(),
        )

    def _used(self, end: Result | Failure) -> Usage:
        """What the job took; without an answer, up to now."""
        if isinstance(end, Result):
            return end.usage
        return used_so_far(self._times, self._answering, asyncio.get_running_loop().time())

    def _refusal(self, code: FailureCode, message: str) -> Failure:
        return refusal(self.address, self._attempt, code, message)

    def _ids(self) -> dict[str, str | int]:
        return {
            "job": self.address.job,
            "tenant": self.address.tenant,
            "priority": self.address.priority.value,
            "attempt": self._attempt,
        }
