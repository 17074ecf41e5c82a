"""What the chaos counts: a job lost, one that ended twice and one whose stream is another are found."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from bench.chaos import Load, Read, Tally
from bench.chaos_faults import Workers
from sparkle.errors import FailureCode, JobFailed, NotConnected
from sparkle.producers.client import Client
from sparkle.producers.handle import Handle
from sparkle.queue.envelope import Envelope
from sparkle.schemas.answer import Channel, Chunk, FinishReason, Result, Usage
from sparkle.schemas.codec import encode
from sparkle.schemas.control import UsageRecord
from sparkle.schemas.ids import new_job_id
from sparkle.schemas.job import Job
from sparkle.schemas.priority import PriorityClass

WANTED = Read((1, 2, 3), "a b c ")


class Killed(Workers):
    """Workers that never run; some were killed."""

    def __init__(self, killed_s: dict[str, float] | None = None) -> None:
        super().__init__(lambda name, url: (name, url), "nats://nowhere", 0)
        self.killed_s = killed_s or {}


Answer = Callable[[Handle], None]


class Answers(Client):
    """A client whose jobs all have the answer given to it."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    async def submit(self, job: Job) -> Handle:
        handle = Handle(job.id, ask_resend=lambda _: None, cancel=never)
        self._answer(handle)
        return handle


async def never() -> None:
    raise AssertionError("nothing is cancelled here")


def chunk(job: str, index: int, *, token: int, worker: str = "w-1", attempt: int = 1, seq: int = 0) -> Chunk:
    return Chunk(
        job=job,
        attempt=attempt,
        seq=seq,
        first_index=index,
        tokens=[token],
        text=WANTED.text[2 * index : 2 * index + 2],
        text_start=2 * index,
        channel=Channel.ANSWER,
        worker=worker,
    )


def result(job: str, *tokens: int, attempt: int = 1) -> Result:
    return Result(
        job=job,
        attempt=attempt,
        worker="w-1",
        text=WANTED.text[: 2 * len(tokens)],
        tokens=list(tokens),
        finish_reason=FinishReason.LENGTH,
        usage=Usage(
            prompt_tokens=1, completion_tokens=len(tokens), queue_s=0.0, first_token_s=0.0, total_s=0.0
        ),
    )


def whole(handle: Handle) -> None:
    for index, token in enumerate(WANTED.tokens):
        handle.on_chunk(chunk(handle.job_id, index, token=token, seq=index))
    handle.on_end(result(handle.job_id, *WANTED.tokens))


def another_token(handle: Handle) -> None:
    handle.on_end(result(handle.job_id, 1, 2, 4))


def too_short(handle: Handle) -> None:
    handle.on_end(result(handle.job_id, 1, 2))


def changed_on_the_way(handle: Handle) -> None:
    handle.on_chunk(chunk(handle.job_id, 0, token=9))
    handle.on_end(result(handle.job_id, *WANTED.tokens))


def failed(handle: Handle) -> None:
    handle.fail(JobFailed(FailureCode.POISON_JOB, "as the test says", retryable=False))


def cut_off(handle: Handle) -> None:
    handle.fail(NotConnected("as the test says"))


def gone_on_with(handle: Handle) -> None:
    handle.on_chunk(chunk(handle.job_id, 0, token=1))
    handle.on_chunk(chunk(handle.job_id, 1, token=2, worker="w-2", attempt=2))
    handle.on_end(result(handle.job_id, *WANTED.tokens, attempt=2))


async def tally_of(answer: Answer, workers: Killed | None = None) -> Tally:
    tally = Tally()
    load = Load(Answers(answer), lambda _: WANTED, workers or Killed(), tally, [])
    await load.run([Job(prompt="x")], 1, lambda: None)
    assert tally.jobs == 1
    return tally


@pytest.mark.parametrize(
    ("answer", "lost", "changed", "failures"),
    [
        (whole, 0, 0, {}),
        (another_token, 0, 1, {}),
        (too_short, 0, 1, {}),
        (changed_on_the_way, 1, 0, {"AnswerChanged": 1}),
        (failed, 1, 0, {"poison_job": 1}),
        (cut_off, 1, 0, {"NotConnected": 1}),
    ],
)
async def test_what_is_lost_or_another_answer_is_counted(
    answer: Answer, lost: int, changed: int, failures: dict[str, int]
) -> None:
    tally = await tally_of(answer)
    assert (tally.lost, tally.changed_streams, tally.failures) == (lost, changed, failures)


async def test_the_time_from_a_kill_to_the_next_token_is_taken() -> None:
    tally = await tally_of(gone_on_with, Killed({"w-1": time.monotonic() + 3600}))
    assert (tally.attempts, tally.changed_streams) == (1, 0)
    # the one chunk of the second attempt, read an hour before the kill
    assert [round(one_s / 60) for one_s in tally.resumed_s] == [-60]


def ended(job: str) -> Envelope:
    record = UsageRecord(
        job=job,
        tenant="bench",
        region="local",
        worker="w-1",
        attempt=1,
        priority=PriorityClass.P0,
        outcome=FinishReason.LENGTH,
        prompt_tokens=1,
        cached_tokens=0,
        completion_tokens=1,
        drafted_tokens=0,
        accepted_tokens=0,
        queue_s=0.0,
        total_s=0.0,
        finished_ms=1,
    )
    return Envelope("usage", encode(record))


async def test_a_job_that_ended_twice_is_counted_once_and_at_once() -> None:
    tally, jobs = Tally(doubled=5), [new_job_id() for _ in range(3)]
    load = Load(Answers(whole), lambda _: WANTED, Killed(), tally, [])
    for job in (jobs[0], jobs[1], jobs[0], jobs[2], jobs[0]):
        await load.take_usage(ended(job))
    # a run that is cut short here keeps it, beside those of the run before
    assert tally.doubled == 6


async def test_an_end_that_was_lost_with_all_nodes_may_come_again() -> None:
    tally, job, all_lost_s = Tally(), new_job_id(), list[float]()
    load = Load(Answers(whole), lambda _: WANTED, Killed(), tally, all_lost_s)
    await load.take_usage(ended(job))
    all_lost_s.append(time.monotonic())
    await load.take_usage(ended(job))
    assert tally.doubled == 0
    await load.take_usage(ended(job))
    assert tally.doubled == 1
