"""Jobs through a worker with a stand-in engine and a real server: answers, refusals, cancels, deadlines."""

from __future__ import annotations

import time

import pytest
import pytest_asyncio

from sparkle.errors import FailureCode
from sparkle.queue.connection import Connection
from sparkle.queue.local import LocalServer
from sparkle.schemas.answer import Channel, FinishReason
from sparkle.schemas.codec import encode
from sparkle.schemas.control import WorkerState
from sparkle.schemas.packing import pack
from sparkle.schemas.priority import PriorityClass
from tests.conftest import Eventually
from tests.engine_stand_in import StandInEngine, text_of
from tests.worker_at_work import TENANT, Overheard, Producer, at_work, make_job, tokens_of


@pytest_asyncio.fixture
async def producer(connection: Connection) -> Producer:
    return Producer(connection)


async def test_a_job_comes_back_as_chunks_and_a_result(producer: Producer, nats_server: LocalServer) -> None:
    heard = await Overheard.listen(producer.connection)
    job = make_job("one two three think=2", max_tokens=6)
    async with at_work(nats_server.url, name="w-1"):
        watched = await producer.submit(job, PriorityClass.P2)
        result = await watched.result()
        await producer.until_empty()
    assert result.tokens == tokens_of(job) == watched.tokens()
    assert result.reasoning == text_of(job.id, 0) + text_of(job.id, 1) == watched.text(Channel.REASONING)
    assert result.text == "".join(text_of(job.id, index) for index in range(2, 6)) == watched.text()
    assert (result.finish_reason, result.attempt, result.worker) == (FinishReason.LENGTH, 1, "w-1")
    assert (result.usage.prompt_tokens, result.usage.completion_tokens) == (4, 6)
    assert 0 < result.usage.first_token_s <= result.usage.total_s < 5
    (record,) = heard.usage
    assert (record.job, record.outcome, record.completion_tokens) == (job.id, FinishReason.LENGTH, 6)
    assert (record.tenant, record.region, record.worker) == (TENANT, "local", "w-1")
    assert record.priority is PriorityClass.P2


async def test_log_probabilities_come_with_chunks_and_result(
    producer: Producer, nats_server: LocalServer
) -> None:
    async with at_work(nats_server.url):
        watched = await producer.submit(make_job(max_tokens=3, sampling={"logprobs": 1}))
        result = await watched.result()
    assert result.logprobs is not None
    assert [entry.logprob for entry in result.logprobs] == [-1.0] * 3
    assert sum(len(chunk.logprobs or ()) for chunk in watched.chunks) == 3


@pytest.mark.parametrize(
    "payload", [b"", b"\xff\x00secret", pack({"kind": "job", "v": "1.0"})], ids=["empty", "bytes", "fields"]
)
async def test_a_bad_message_fails_and_leaves_the_queue(
    payload: bytes, producer: Producer, nats_server: LocalServer
) -> None:
    async with at_work(nats_server.url):
        watched = await producer.submit_bytes(make_job(), payload)
        failure = await watched.failure()
        await producer.until_empty()
        assert await producer.feed.stored_end(TENANT, watched.job.id) == failure
        # the worker goes on
        assert (await (await producer.submit(make_job())).result()).tokens
    assert (failure.code, failure.retryable) == (FailureCode.INVALID_JOB, False)
    assert "secret" not in failure.message


async def test_a_job_under_another_ones_address_is_refused(
    producer: Producer, nats_server: LocalServer
) -> None:
    async with at_work(nats_server.url):
        watched = await producer.submit_bytes(make_job(), encode(make_job("hello", id=make_job().id)))
        failure = await watched.failure()
        await producer.until_empty()
    assert failure.code is FailureCode.INVALID_JOB
    assert failure.job == watched.job.id
    assert watched.chunks == []


async def test_an_unreadable_subject_leaves_the_queue(
    producer: Producer, nats_server: LocalServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with at_work(nats_server.url):
        await producer.connection.publish_stored("jobs.local.p0.SECRET.thing", b"x", headers={})
        await producer.until_empty()
        assert (await (await producer.submit(make_job())).result()).tokens
    assert "job_unreadable_subject" in [record.message for record in caplog.records]
    assert "SECRET" not in caplog.text


async def test_a_job_with_a_tombstone_never_starts(producer: Producer, nats_server: LocalServer) -> None:
    job = make_job()
    watched = await producer.submit(job)
    await producer.publisher.cancel(TENANT, job.id)
    async with at_work(nats_server.url):
        failure = await watched.failure()
        await producer.until_empty()
    assert failure.code is FailureCode.CANCELLED
    assert watched.chunks == []


async def test_a_running_job_ends_when_it_is_cancelled_and_frees_its_slot(
    producer: Producer, nats_server: LocalServer, eventually: Eventually
) -> None:
    async with at_work(nats_server.url, engine=StandInEngine(slots=1)):
        watched = await producer.submit(make_job("pace_ms=2", max_tokens=100_000))
        await eventually(lambda: watched.chunks)
        await producer.publisher.cancel(TENANT, watched.job.id)
        failure = await watched.failure()
        # the only slot is free again
        assert (await (await producer.submit(make_job())).result()).tokens
        await producer.until_empty()
    assert (failure.code, failure.retryable) == (FailureCode.CANCELLED, False)


async def test_a_cancel_of_another_tenant_changes_nothing(
    producer: Producer, nats_server: LocalServer, eventually: Eventually
) -> None:
    async with at_work(nats_server.url):
        watched = await producer.submit(make_job("pace_ms=10", max_tokens=20))
        await eventually(lambda: watched.chunks)
        await producer.publisher.cancel("other", watched.job.id)
        assert (await watched.result()).tokens == tokens_of(watched.job)


async def test_a_job_past_its_deadline_never_starts(producer: Producer, nats_server: LocalServer) -> None:
    async with at_work(nats_server.url):
        watched = await producer.submit(make_job(deadline_ms=int(time.time() * 1000) - 5))
        failure = await watched.failure()
        await producer.until_empty()
    assert failure.code is FailureCode.DEADLINE_EXCEEDED
    assert watched.chunks == []


@pytest.mark.parametrize("script", ["pace_ms=5", "silent=1"])
async def test_a_running_job_ends_at_its_deadline_and_frees_its_slot(
    script: str, producer: Producer, nats_server: LocalServer
) -> None:
    deadline_ms = int(time.time() * 1000) + 700
    async with at_work(nats_server.url, engine=StandInEngine(slots=1)):
        watched = await producer.submit(make_job(script, max_tokens=100_000, deadline_ms=deadline_ms))
        failure = await watched.failure()
        assert time.time() * 1000 >= deadline_ms
        assert (await (await producer.submit(make_job())).result()).tokens
        await producer.until_empty()
    assert failure.code is FailureCode.DEADLINE_EXCEEDED


async def test_a_job_whose_end_is_stored_is_not_run_again(
    producer: Producer, nats_server: LocalServer
) -> None:
    job = make_job()
    async with at_work(nats_server.url):
        first = await (await producer.submit(job)).result()
        await producer.until_empty()
        # the same job once more, as after a queue that lost it
        await producer.publisher.publish(job, PriorityClass.P0, publication=2)
        again = await producer.watch(job)
        await producer.until_empty()
        assert await producer.feed.stored_end(TENANT, job.id) == first
    assert again.chunks == []


async def test_an_engines_failure_is_the_jobs_end(producer: Producer, nats_server: LocalServer) -> None:
    async with at_work(nats_server.url):
        failure = await (await producer.submit(make_job("fail=too_long"))).failure()
        await producer.until_empty()
    assert (failure.code, failure.message, failure.retryable) == (FailureCode.TOO_LONG, "as scripted", False)


async def test_token_ids_without_room_for_an_answer_never_reach_the_engine(
    producer: Producer, nats_server: LocalServer
) -> None:
    # the stand-in would answer it: it has room for 4,096 tokens, and does not look
    async with at_work(nats_server.url):
        failure = await (await producer.submit(make_job(prompt=None, prompt_tokens=[1] * 4096))).failure()
        fits = await (await producer.submit(make_job(prompt=None, prompt_tokens=[1] * 4095))).result()
        await producer.until_empty()
    assert (failure.code, failure.retryable) == (FailureCode.TOO_LONG, False)
    assert "has 4096 tokens" in failure.message
    assert "room for 4096" in failure.message
    assert fits.tokens


async def test_an_engine_that_leaves_out_a_token_fails_the_job(
    producer: Producer, nats_server: LocalServer
) -> None:
    async with at_work(nats_server.url):
        failure = await (await producer.submit(make_job("skip_at=2"))).failure()
        await producer.until_empty()
    assert failure.code is FailureCode.ENGINE_ERROR
    assert failure.message.startswith("delta starts at token 3")


async def test_a_job_that_always_fails_for_now_is_given_up(
    producer: Producer, nats_server: LocalServer
) -> None:
    async with at_work(nats_server.url, max_deliveries=3):
        failure = await (await producer.submit(make_job("fail=engine_error retryable=1"))).failure()
        await producer.until_empty()
    assert (failure.code, failure.attempt) == (FailureCode.POISON_JOB, 3)


@pytest.mark.parametrize("logprobs", [None, 0])
async def test_an_answer_too_large_for_the_queue_still_ends(
    logprobs: int | None, producer: Producer, nats_server: LocalServer
) -> None:
    job = make_job("text_chars=3000000", max_tokens=3, sampling={"logprobs": logprobs})
    async with at_work(nats_server.url):
        failure = await (await producer.submit(job)).failure()
        await producer.until_empty()
    assert failure.code is FailureCode.ENGINE_ERROR
    assert "of 3 tokens is larger than the queue's limit" in failure.message


async def test_many_jobs_at_once_keep_their_answers_apart(
    producer: Producer, nats_server: LocalServer
) -> None:
    async with at_work(nats_server.url):
        jobs = [make_job(f"pace_ms=1 think={number % 3}", max_tokens=5 + number % 7) for number in range(40)]
        watched = [
            await producer.submit(job, list(PriorityClass)[number % 5]) for number, job in enumerate(jobs)
        ]
        for one in watched:
            assert (await one.result()).tokens == tokens_of(one.job) == one.tokens()
        await producer.until_empty()


async def test_heartbeats_tell_the_workers_life(
    producer: Producer, nats_server: LocalServer, eventually: Eventually
) -> None:
    heard = await Overheard.listen(producer.connection)
    # long between two beats: each state is told when it begins
    engine = StandInEngine(slots=3, load_ms=200)
    async with at_work(nats_server.url, name="w-7", engine=engine, heartbeat_s=0.5, drain_s=60.0) as worker:
        watched = await producer.submit(make_job("pace_ms=20", max_tokens=40))
        await eventually(lambda: watched.chunks)
        worker.life.interrupt()
        await worker.end()
        assert (await watched.result()).tokens == tokens_of(watched.job)
    assert heard.states() == [WorkerState.STARTING, WorkerState.READY, WorkerState.DRAINING]
    first = heard.heartbeats[0]
    assert (first.worker, first.region, first.model, first.slots) == ("w-7", "local", "", 0)
    (busy,) = {(beat.model, beat.slots, *beat.running) for beat in heard.heartbeats if beat.running}
    assert busy == ("stand-in", 3, watched.job.id)
