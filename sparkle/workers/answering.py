"""One job's answer while its engine writes it: frames in, chunks out, until its end. Knows no lease.

Tokens that an earlier attempt wrote are given to the engine, which tells their text once more; of them the
producer is sent only what it lacks.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from sparkle.engine.frames import Accepted, CancelRequest, Delta, Failed, Finished, Submit
from sparkle.errors import EngineExited, FailureCode
from sparkle.schemas.answer import Failure, Result, Usage
from sparkle.schemas.answered import Answered
from sparkle.schemas.job import Job
from sparkle.workers.answer import AnswerSoFar
from sparkle.workers.coalesce import Coalescer
from sparkle.workers.consumer_watch import ConsumerWatch
from sparkle.workers.job_times import JobTimes
from sparkle.workers.known import Known
from sparkle.workers.probation import CLEARED_TOKENS
from sparkle.workers.station import Station


@dataclass(frozen=True, slots=True)
class EngineEnded:
    """The engine process has ended."""


@dataclass(frozen=True, slots=True)
class ConsumerGone:
    """Nobody waits for the answer any more."""


JobEvent = Accepted | Delta | Finished | Failed | CancelRequest | ConsumerGone | EngineEnded
"""What can happen to a running job: frames of its engine, the engine's end, its producer's cancel or end."""


def used_so_far(times: JobTimes, answering: Answering | None, now_s: float) -> Usage:
    """What a job without an answer took up to now."""
    return Usage(
        prompt_tokens=0 if answering is None else answering.prompt_tokens,
        completion_tokens=0 if answering is None else answering.num_tokens,
        queue_s=times.queue_s,
        first_token_s=times.until_first_token_s(now_s),
        total_s=times.total_s(now_s),
    )


class Answering:
    """One attempt at a job, from its admission on."""

    def __init__(
        self,
        station: Station,
        job: Job,
        payload: bytes,
        events: asyncio.Queue[JobEvent],
        times: JobTimes,
        *,
        tenant: str,
        attempt: int,
        known: Known,
    ) -> None:
        """`known`: what earlier attempts wrote."""
        self.attempt = attempt
        self._station = station
        self._job = job
        self._payload = payload
        self._events = events
        self._times = times
        self._tenant = tenant
        self._known = known
        self._answer = AnswerSoFar(
            job=job.id, attempt=attempt, worker=station.worker, logprobs=known.logprobs
        )
        self._coalescer = Coalescer(station.settings.chunk_window_ms / 1000)
        self.prompt_tokens = 0
        """Of the job, once the engine has counted them."""
        self.in_engine = False
        """Whether the engine has the job, or may have it."""
        self._consumer = ConsumerWatch(
            station.records,
            tenant,
            lambda: self.record(self.strikes),
            lambda: events.put_nowait(ConsumerGone()),
            away_s=station.settings.consumer_away_s,
            detached=job.detached,
        )

    async def run(self) -> Result | Failure:
        """The engine's end of the job, or the deadline's; the engine's slot is free afterwards.

        Raises EngineError.
        """
        deadline_ms = self._job.deadline_ms
        left_s = None if deadline_ms is None else deadline_ms / 1000 - self._station.unix_s()
        submit = Submit(job=self._job.id, payload=self._payload, answered=self._known.tokens)
        watching = asyncio.create_task(self._consumer.run(), name="watch-consumer")
        try:
            async with asyncio.timeout(left_s):
                await self._station.probation.enter(self._job.id, self._known.strikes)
                # before the await: should it be cut short, the engine may have the job
                self.in_engine = True
                await self._station.engine.submit(submit)
                end = await self._follow()
                return await self._checked(end) if isinstance(end, Result) else end
        except TimeoutError:
            return self._failed(
                FailureCode.DEADLINE_EXCEEDED,
                f"the deadline passed after {self.num_tokens} tokens of the answer",
            )
        finally:
            watching.cancel()
            self._station.probation.clear(self._job.id)
            if self.in_engine:
                self._station.engine.cancel(self._job.id)

    async def flush(self) -> None:
        """Send on all that the engine has written: whoever goes on with the job need not write it again."""
        while not self._events.empty():
            event = self._events.get_nowait()
            if isinstance(event, Delta):
                await self._take(event)
        await self._send(self._coalescer.flush(asyncio.get_running_loop().time()))

    @property
    def is_unheard(self) -> bool:
        """Whether nobody was there to hear of the answer when its producer was last asked."""
        return self._consumer.is_away

    @property
    def strikes(self) -> int:
        """How often in a row an engine has ended with this job in it, and no more tokens came of it."""
        new_tokens = self._answer.num_tokens - len(self._known.tokens)
        return 0 if new_tokens >= CLEARED_TOKENS else self._known.strikes

    def record(self, strikes: int) -> Answered:
        """What is written, for the worker that goes on."""
        known = self._known
        if self._answer.num_tokens >= len(known.tokens):
            return self._answer.record(strikes)
        # the engine has not told all of them again: what was known must not be lost with it
        return Answered(
            job=self._job.id,
            attempt=known.attempt,
            tokens=known.tokens,
            logprobs=known.logprobs,
            strikes=strikes,
        )

    @property
    def num_tokens(self) -> int:
        """Of the answer, those of earlier attempts included."""
        return max(self._answer.num_tokens, len(self._known.tokens))

    async def _follow(self) -> Result | Failure:
        """Send on what the engine writes until it, or the producer, ends the job."""
        while True:
            event = await self._next_event()
            now_s = asyncio.get_running_loop().time()
            match event:
                case None:
                    await self._send(self._coalescer.take_due(now_s))
                case Accepted():
                    self.prompt_tokens = event.prompt_tokens
                case Delta():
                    await self._take(event)
                case Finished():
                    self.in_engine = False
                    self._station.metrics.answer_finished(event.drafts, cached_tokens=event.cached_tokens)
                    await self._send(self._coalescer.flush(now_s))
                    return self._result(event, now_s)
                case Failed():
                    self.in_engine = False
                    return self._failed(event.code, event.message, retryable=event.retryable)
                case EngineEnded():
                    self.in_engine = False
                    raise EngineExited("the engine process has ended")
                case ConsumerGone():
                    away_s = self._station.settings.consumer_away_s
                    return self._failed(
                        FailureCode.CANCELLED,
                        f"nobody waited for the answer for {away_s} s; a detached job is finished even so",
                    )
                case CancelRequest():
                    return self._failed(FailureCode.CANCELLED, f"cancelled after {self.num_tokens} tokens")

    async def _checked(self, result: Result) -> Result | Failure:
        answer = self._answer
        return await self._station.shapes.checked(
            self._job, result, enforced=answer.enforced, cut=answer.call_is_cut
        )

    async def _take(self, delta: Delta) -> None:
        now_s = asyncio.get_running_loop().time()
        self._answer.add(delta)
        if self.strikes == 0:
            self._station.probation.clear(self._job.id)
        if delta.tokens and delta.first_index >= len(self._known.tokens):
            self._times.token_came(now_s)
        if delta.tokens and delta.first_index + len(delta.tokens) <= self._known.producer_tokens:
            return
        await self._send(self._coalescer.add(delta, now_s))

    async def _next_event(self) -> JobEvent | None:
        """The next event, or None when held tokens are due before it."""
        try:
            async with asyncio.timeout_at(self._coalescer.due_s):
                return await self._events.get()
        except TimeoutError:
            return None

    async def _send(self, deltas: list[Delta]) -> None:
        for delta in deltas:
            await self._station.replies.send(self._tenant, self._answer.chunk(delta))

    def _result(self, finished: Finished, now_s: float) -> Result:
        return self._answer.result(
            finished,
            queue_s=self._times.queue_s,
            first_token_s=self._times.until_first_token_s(now_s),
            total_s=self._times.total_s(now_s),
        )

    def _failed(self, code: FailureCode, message: str, *, retryable: bool = False) -> Failure:
        return Failure(
            job=self._job.id,
            attempt=self.attempt,
            code=code,
            message=message[:2000],
            retryable=retryable,
        )
