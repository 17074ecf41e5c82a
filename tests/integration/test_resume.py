"""A job that another worker takes over goes on behind the tokens that its producer, or the queue, has."""

from __future__ import annotations

import asyncio
import logging

import pytest
import pytest_asyncio

from sparkle.errors import FailureCode, MessageTooLarge
from sparkle.producers.client import Client
from sparkle.producers.settings import ClientSettings
from sparkle.queue import topology
from sparkle.queue.answered import AnswerRecords
from sparkle.queue.answers import AnswerFeed
from sparkle.queue.connection import Connection
from sparkle.queue.local import LocalServer
from sparkle.queue.topology import TopologySettings
from sparkle.schemas import subjects
from sparkle.schemas.answer import Alternative, Failure, Result, TokenLogprobs, unspelled
from sparkle.schemas.answered import Answered
from sparkle.schemas.codec import encode
from sparkle.schemas.ids import new_job_id
from sparkle.schemas.job import Job
from sparkle.schemas.priority import PriorityClass
from tests.conftest import Eventually
from tests.engine_stand_in import StandInEngine, text_of
from tests.worker_at_work import (
    REGION,
    TENANT,
    WAIT_S,
    Overheard,
    Producer,
    Watched,
    at_work,
    make_job,
    tokens_of,
)


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


async def test_an_engine_that_ends_before_it_tells_them_again_loses_no_tokens_that_were_known(
    producer: Producer, nats_server: LocalServer, monkeypatch: pytest.MonkeyPatch, eventually: Eventually
) -> None:
    job, told, store = make_job("crash_after=0", max_tokens=20), list[Answered](), AnswerRecords.store
    tokens = tokens_of(job)[:12]
    await AnswerRecords(producer.connection).store(TENANT, Answered(job=job.id, attempt=4, tokens=tokens))

    async def kept(records: AnswerRecords, tenant: str, answered: Answered) -> None:
        told.append(answered)
        await store(records, tenant, answered)

    monkeypatch.setattr(AnswerRecords, "store", kept)
    heard = await Overheard.listen(producer.connection)
    await producer.publisher.publish(job, PriorityClass.P0, publication=2)
    async with at_work(nats_server.url):
        await producer.until_empty()
    # twice it is handed back, and then given up
    assert [(one.attempt, one.tokens, one.strikes) for one in told] == [(4, tokens, 1), (4, tokens, 2)]
    await eventually(lambda: heard.usage)
    assert [(one.outcome, one.completion_tokens) for one in heard.usage] == [(FailureCode.POISON_JOB, 12)]


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


def larger_than_the_queue_takes(job: str) -> Answered:
    """As a worker or a client may have it, in as few tokens as can be: with the longest texts of all."""
    long = "-" * 1024
    top = [Alternative(token=number, logprob=-1.5, text=long) for number in range(248_000, 248_020)]
    entry = TokenLogprobs(logprob=-1.5, text=long, top=top)
    return Answered(job=job, attempt=1, tokens=[248_000] * 400, logprobs=[entry] * 400)


async def test_log_probabilities_too_large_for_the_queue_come_back_without_their_texts(
    connection: Connection,
) -> None:
    feed, records, job = AnswerFeed(connection), AnswerRecords(connection, ask_timeout_s=60.0), new_job_id()
    written = larger_than_the_queue_takes(job)
    with pytest.raises(MessageTooLarge):
        encode(written)
    await records.store(TENANT, written)
    await feed.open(TENANT, job, lambda _: None, lambda _: None, answered=lambda _: written)
    for known in (await records.stored(TENANT, job), await records.ask(TENANT, job, 0)):
        assert known is not None
        assert known.tokens == written.tokens
        assert known.logprobs == unspelled(written.logprobs or [])


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


async def test_a_job_nobody_waits_for_is_cancelled_and_frees_its_slot(
    producer: Producer, nats_server: LocalServer
) -> None:
    job = make_job("silent=1")
    await producer.publisher.publish(job, PriorityClass.P0, publication=1)
    async with at_work(nats_server.url, engine=StandInEngine(slots=1), consumer_away_s=0.2):
        after = await producer.submit(make_job())
        assert (await after.result()).tokens == tokens_of(after.job)
        await producer.until_empty()
    end = await producer.feed.stored_end(TENANT, job.id)
    assert isinstance(end, Failure)
    assert end.code is FailureCode.CANCELLED
    assert end.message.startswith("nobody waited for the answer for 0.2 s")


async def test_a_detached_job_is_finished_for_whoever_submits_it_again(
    producer: Producer, nats_server: LocalServer, eventually: Eventually
) -> None:
    job = make_job("pace_ms=20", max_tokens=50, detached=True)
    await producer.publisher.publish(job, PriorityClass.P0, publication=1)
    async with at_work(nats_server.url, consumer_away_s=0.1):
        await producer.until_running()
        await producer.until_empty()
        settings = ClientSettings(nats=nats_server.url, region=REGION, tenant=TENANT)
        async with await Client.open(settings) as client:
            handle = await client.submit(job)
            assert (await handle.result()).tokens == tokens_of(job)


async def test_a_producer_that_waits_keeps_its_job(producer: Producer, nats_server: LocalServer) -> None:
    async with at_work(nats_server.url, consumer_away_s=0.1):
        watched = await producer.submit(make_job("pace_ms=20", max_tokens=40))
        assert (await watched.result()).tokens == tokens_of(watched.job)


async def test_while_its_producer_is_away_an_answer_is_stored_for_the_next_worker(
    producer: Producer, nats_server: LocalServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    job = make_job("pace_ms=20", max_tokens=60, detached=True)
    await producer.publisher.publish(job, PriorityClass.P0, publication=1)
    records = AnswerRecords(producer.connection)
    async with at_work(nats_server.url, consumer_away_s=0.1) as first:
        async with asyncio.timeout(WAIT_S):
            while (stored := await records.stored(TENANT, job.id)) is None:  # noqa: ASYNC110 - it tells nobody
                await asyncio.sleep(0.01)
        first.life.interrupt()
        await first.end()
    assert stored.tokens == tokens_of(job)[: len(stored.tokens)]
    async with at_work(nats_server.url, consumer_away_s=0.1):
        await producer.until_empty()
    (resumed,) = [vars(record) for record in caplog.records if record.message == "job_resumed"]
    assert resumed["tokens"] >= len(stored.tokens)
    assert resumed["producer_there"] is False
    end = await producer.feed.stored_end(TENANT, job.id)
    assert isinstance(end, Result)
    assert (end.tokens, end.attempt) == (tokens_of(job), 2)
