"""A job that another worker takes over goes on behind the tokens that its producer, or the queue, has."""

from __future__ import annotations

import pytest
import pytest_asyncio

from sparkle.errors import FailureCode
from sparkle.queue import topology
from sparkle.queue.answered import AnswerRecords
from sparkle.queue.answers import AnswerFeed
from sparkle.queue.connection import Connection
from sparkle.queue.local import LocalServer
from sparkle.queue.topology import TopologySettings
from sparkle.schemas import subjects
from sparkle.schemas.answer import TokenLogprobs
from sparkle.schemas.answered import Answered
from sparkle.schemas.ids import new_job_id
from sparkle.schemas.job import Job
from sparkle.schemas.priority import PriorityClass
from tests.conftest import Eventually
from tests.engine_stand_in import text_of
from tests.worker_at_work import REGION, TENANT, Producer, Watched, at_work, make_job, tokens_of


@pytest_asyncio.fixture
async def producer(connection: Connection) -> Producer:
    return Producer(connection)


async def half_answered(producer: Producer, server: LocalServer, job: Job, eventually: Eventually) -> Watched:
    """A worker has written at least 5 tokens of the job, and has handed it back."""
    async with at_work(server.url, name="w-1") as first:
        watched = await producer.submit(job)
        await eventually(lambda: len(watched.tokens()) >= 5)
        first.life.interrupt()
        first.life.interrupt()
        await first.end()
    return watched


async def test_the_stream_goes_on_behind_the_last_token_and_usage_counts_each_once(
    producer: Producer, nats_server: LocalServer, eventually: Eventually
) -> None:
    job = make_job("pace_ms=10 think=3", max_tokens=40, sampling={"logprobs": 1})
    watched = await half_answered(producer, nats_server, job, eventually)
    async with at_work(nats_server.url, name="w-2"):
        result = await watched.result()
        await producer.until_empty()
    before, after = watched.tokens(attempt=1), watched.tokens(attempt=2)
    assert before + after == result.tokens == tokens_of(job)
    assert next(chunk.first_index for chunk in watched.chunks if chunk.attempt == 2) == len(before)
    texts = [text_of(job.id, index) for index in range(40)]
    assert (result.reasoning, result.text) == ("".join(texts[:3]), "".join(texts[3:]))
    assert "".join(chunk.text for chunk in watched.read) == result.reasoning + result.text
    assert (result.attempt, result.usage.completion_tokens) == (2, 40)
    # those of the first worker's tokens came by way of the producer
    assert result.logprobs is not None
    assert len(result.logprobs) == 40
    assert [one for chunk in watched.read for one in chunk.logprobs or ()] == result.logprobs


async def test_a_job_published_again_after_a_loss_goes_on_and_its_attempts_count_up(
    producer: Producer, nats_server: LocalServer, eventually: Eventually
) -> None:
    job = make_job("pace_ms=10", max_tokens=40)
    watched = await half_answered(producer, nats_server, job, eventually)
    await nats_server.kill()
    await nats_server.start()
    await eventually(lambda: producer.connection.is_up)
    await topology.apply(producer.connection, TopologySettings(regions=REGION))
    await producer.publisher.publish(job, PriorityClass.P0, publication=2)
    async with at_work(nats_server.url, name="w-2"):
        result = await watched.result()
    assert result.attempt == 2
    assert watched.tokens(attempt=1) + watched.tokens(attempt=2) == result.tokens == tokens_of(job)


async def test_what_was_stored_serves_where_the_producer_is_away(
    producer: Producer, nats_server: LocalServer
) -> None:
    job = make_job(max_tokens=20)
    tokens = tokens_of(job)
    await producer.publisher.publish(job, PriorityClass.P0, publication=2)
    records = AnswerRecords(producer.connection)
    await records.store(TENANT, Answered(job=job.id, attempt=4, tokens=tokens[:12]))
    async with at_work(nats_server.url):
        await producer.until_empty()
    end = await producer.feed.stored_end(TENANT, job.id)
    assert end is not None
    assert end.attempt == 5
    # content goes with the job, not with its age
    subject = subjects.answered(TENANT, job.id)
    assert await producer.connection.last_stored(subjects.ANSWERED_STREAM, subject) == b""
    assert await records.stored(TENANT, job.id) is None


async def test_a_producer_that_has_less_than_was_stored_is_sent_the_rest(
    producer: Producer, nats_server: LocalServer
) -> None:
    job = make_job(max_tokens=20)
    records = AnswerRecords(producer.connection)
    await records.store(TENANT, Answered(job=job.id, attempt=1, tokens=tokens_of(job)[:12]))
    watched = await producer.watch(job)
    await producer.publisher.publish(job, PriorityClass.P0, publication=2)
    async with at_work(nats_server.url):
        result = await watched.result()
    assert [token for chunk in watched.read for token in chunk.tokens] == result.tokens == tokens_of(job)


async def test_a_question_without_anybody_to_answer_is_answered_at_once(connection: Connection) -> None:
    records = AnswerRecords(connection, ask_timeout_s=60.0)
    assert await records.ask(TENANT, new_job_id(), 0) is None


async def test_a_producer_tells_what_it_has_from_a_token_on(connection: Connection) -> None:
    feed, records, job = AnswerFeed(connection), AnswerRecords(connection), new_job_id()
    logprobs = [TokenLogprobs(logprob=-float(number), top=[]) for number in range(3)]

    def has(from_index: int) -> Answered:
        return Answered(job=job, attempt=7, tokens=[5, 6, 7][from_index:], logprobs=logprobs[from_index:])

    await feed.open(TENANT, job, lambda _: None, lambda _: None, answered=has)
    assert await records.ask(TENANT, job, 1) == has(1)
    await feed.close(TENANT, job)
    await feed.open(TENANT, job, lambda _: None, lambda _: None)
    assert await records.ask(TENANT, job, 0) == Answered(job=job, attempt=0, tokens=[])


@pytest.mark.parametrize("payload", [b"", b"\xc1", b"x" * 100])
async def test_an_answer_that_is_none_counts_as_nobody(connection: Connection, payload: bytes) -> None:
    job = new_job_id()

    async def answer(envelope: object) -> None:
        await connection.publish(getattr(envelope, "reply"), payload)  # noqa: B009

    await connection.subscribe(subjects.reply(TENANT, job), answer)
    assert await AnswerRecords(connection).ask(TENANT, job, 0) is None


async def test_deliveries_in_vain_are_counted_from_the_last_token(
    producer: Producer, nats_server: LocalServer
) -> None:
    job = make_job("fail=engine_error retryable=1")
    watched = await producer.watch(job)
    await AnswerRecords(producer.connection).store(TENANT, Answered(job=job.id, attempt=2, tokens=[]))
    await producer.publisher.publish(job, PriorityClass.P0, publication=2)
    async with at_work(nats_server.url, max_deliveries=2):
        failure = await watched.failure()
    assert (failure.code, failure.attempt) == (FailureCode.POISON_JOB, 4)
