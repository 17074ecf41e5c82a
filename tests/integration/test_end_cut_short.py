"""A worker is told to end while it stores an end: one end, one usage record, and nothing kept behind it."""

from __future__ import annotations

import asyncio
import logging

import pytest
import pytest_asyncio

from sparkle.errors import FailureCode
from sparkle.queue.answered import AnswerRecords
from sparkle.queue.connection import Connection
from sparkle.queue.local import LocalServer
from sparkle.queue.replies import ReplyStream
from sparkle.schemas import subjects
from sparkle.schemas.answer import Failure, Result
from sparkle.schemas.answered import Answered
from sparkle.schemas.priority import PriorityClass
from sparkle.workers import running
from tests.conftest import Eventually
from tests.worker_at_work import TENANT, Overheard, Producer, at_work, make_job


@pytest_asyncio.fixture
async def producer(connection: Connection) -> Producer:
    return Producer(connection)


class Storing:
    """Ends are stored; before and behind it somebody waits."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.go_on, self.done, self.go_away = (asyncio.Event() for _ in range(4))
        store_end = ReplyStream.store_end

        async def held(replies: ReplyStream, tenant: str, end: Result | Failure) -> bool:
            self.begun.set()
            await self.go_on.wait()
            stands = await store_end(replies, tenant, end)
            self.done.set()
            await self.go_away.wait()
            return stands

        monkeypatch.setattr(ReplyStream, "store_end", held)


async def test_an_end_that_is_being_stored_is_stored_and_accounted_for(
    producer: Producer,
    nats_server: LocalServer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    eventually: Eventually,
) -> None:
    caplog.set_level(logging.INFO)
    heard, storing = await Overheard.listen(producer.connection), Storing(monkeypatch)
    storing.go_away.set()
    async with at_work(nats_server.url) as worker:
        watched = await producer.submit(make_job())
        await storing.begun.wait()
        worker.life.interrupt()
        worker.life.interrupt()
        await eventually(lambda: "worker_draining" in [record.message for record in caplog.records])
        storing.go_on.set()
        await worker.end()
    assert (await watched.result()).attempt == 1
    await eventually(lambda: [one.job for one in heard.usage] == [watched.job.id])
    assert await producer.num_left() == 0
    assert "job_handed_back" not in [record.message for record in caplog.records]


async def test_one_that_is_cut_short_keeps_no_record_and_the_next_worker_clears_what_is_left(
    producer: Producer, nats_server: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "_END_S", 0.1)
    job, storing = make_job(), Storing(monkeypatch)
    storing.go_on.set()
    watched = await producer.watch(job)
    before = Answered(job=job.id, attempt=1, tokens=[], strikes=1)
    await AnswerRecords(producer.connection).store(TENANT, before)
    record = await stored_record(producer, job.id)
    await producer.publisher.publish(job, PriorityClass.P0, publication=2)
    async with at_work(nats_server.url) as worker:
        await storing.done.wait()
        worker.life.interrupt()
        worker.life.interrupt()
        await worker.end()
    assert await stored_record(producer, job.id) == record
    async with at_work(nats_server.url):
        await producer.until_empty()
    assert await stored_record(producer, job.id) == b""
    assert [end.attempt for end in watched.ends] == [2]


async def test_a_job_given_up_whose_end_is_cut_short_goes_back_at_once(
    producer: Producer,
    nats_server: LocalServer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(running, "_END_S", 0.1)
    job, storing = make_job("crash_after=2"), Storing(monkeypatch)
    storing.go_away.set()
    watched = await producer.watch(job)
    before = Answered(job=job.id, attempt=1, tokens=[], strikes=2)
    await AnswerRecords(producer.connection).store(TENANT, before)
    await producer.publisher.publish(job, PriorityClass.P0, publication=2)
    async with at_work(nats_server.url) as worker:
        await storing.begun.wait()
        worker.life.interrupt()
        worker.life.interrupt()
        await worker.end()
    assert [record.message for record in caplog.records].count("job_handed_back") == 1
    storing.go_on.set()
    async with at_work(nats_server.url):
        failure = await watched.failure()
        await producer.until_empty()
    assert (failure.code, failure.attempt) == (FailureCode.POISON_JOB, 3)


async def stored_record(producer: Producer, job: str) -> bytes | None:
    return await producer.connection.last_stored(subjects.ANSWERED_STREAM, subjects.answered(TENANT, job))
