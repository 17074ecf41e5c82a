"""The machine's clock is set while a worker serves: no deadline passes by that, and none stops passing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest
import pytest_asyncio

from sparkle.errors import FailureCode, JobFailed
from sparkle.producers.client import Client
from sparkle.producers.settings import ClientSettings
from sparkle.queue.connection import Connection
from sparkle.queue.local import LocalServer
from sparkle.schemas.job import Job
from tests.worker_at_work import REGION, TENANT, Producer, at_work, make_job, tokens_of

STEPS_S = [-7_200.0, 7_200.0]


@pytest_asyncio.fixture
async def producer(connection: Connection) -> Producer:
    return Producer(connection)


@pytest.mark.parametrize("step_s", STEPS_S)
async def test_a_worker_judges_deadlines_as_if_nobody_had_set_its_clock(
    producer: Producer, nats_server: LocalServer, monkeypatch: pytest.MonkeyPatch, step_s: float
) -> None:
    right = time.time
    async with at_work(nats_server.url):
        running = await producer.submit(make_job("pace_ms=10", max_tokens=30, deadline_ms=_in_ms(right, 60)))
        await producer.until_running()
        monkeypatch.setattr(time, "time", lambda: right() + step_s)
        in_time = await producer.submit(make_job(deadline_ms=_in_ms(right, 60)))
        late = await producer.submit(make_job(deadline_ms=_in_ms(right, -1)))
        soon_late = await producer.submit(make_job("silent=1", deadline_ms=_in_ms(right, 0.5)))
        for watched in (running, in_time):
            result = await watched.result()
            assert result.tokens == tokens_of(watched.job)
            # what is charged and shown is how long it was, too
            assert 0 <= result.usage.queue_s < 60
        for watched in (late, soon_late):
            assert (await watched.failure()).code is FailureCode.DEADLINE_EXCEEDED


@pytest.mark.parametrize("step_s", STEPS_S)
async def test_a_client_goes_by_the_deadline_that_a_job_was_submitted_with(
    nats_server: LocalServer, connection: Connection, monkeypatch: pytest.MonkeyPatch, step_s: float
) -> None:
    right = time.time
    settings = ClientSettings(nats=nats_server.url, region=REGION, tenant=TENANT)
    async with await Client.open(settings) as client:
        # no worker: only the client itself can say that the time is over
        waits = await client.submit(Job(prompt="x", deadline_ms=_in_ms(right, 600)))
        passes = await client.submit(Job(prompt="x", deadline_ms=_in_ms(right, 0.5)))
        monkeypatch.setattr(time, "time", lambda: right() + step_s)
        with pytest.raises(JobFailed) as failed:
            await passes.result()
        assert failed.value.code is FailureCode.DEADLINE_EXCEEDED
        await asyncio.sleep(0)
        assert not waits.done
        await waits.cancel()


def _in_ms(right: Callable[[], float], seconds: float) -> int:
    """A deadline so many seconds from now by the right time, as a contract's number."""
    return int((right() + seconds) * 1000)
