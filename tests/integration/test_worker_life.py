"""How a worker starts, drains, hands back and fails: with a stand-in engine process and a real server."""

from __future__ import annotations

import asyncio
import logging
import os
import signal

import pytest
import pytest_asyncio

from sparkle.clock import SteadyUnixClock
from sparkle.engine.settings import UNUSABLE_CODE
from sparkle.errors import (
    CheckpointError,
    ConfigError,
    EngineExited,
    FailureCode,
    NotConnected,
    SparkleError,
    TopologyMissing,
)
from sparkle.queue import topology
from sparkle.queue.answered import AnswerRecords
from sparkle.queue.connection import Connection, ConnectionSettings
from sparkle.queue.control import HeartbeatSender, drain_worker
from sparkle.queue.handover import Offers
from sparkle.queue.job_seals import JobSeals
from sparkle.queue.local import LocalServer
from sparkle.queue.replies import ReplyStream
from sparkle.queue.topology import TopologySettings
from sparkle.queue.wills import Heir
from sparkle.schemas import subjects
from sparkle.schemas.answer import Failure, Result
from sparkle.schemas.answered import Answered
from sparkle.schemas.codec import encode
from sparkle.schemas.control import WorkerState
from sparkle.schemas.priority import PriorityClass
from sparkle.schemas.subjects import JobAddress
from sparkle.workers.assembly import run_worker
from sparkle.workers.check_client import CheckProcess
from sparkle.workers.lifecycle import LifeCycle
from sparkle.workers.metrics import WorkerMetrics
from sparkle.workers.pulse import Pulse
from sparkle.workers.settings import WorkerSettings
from sparkle.workers.shape_check import ShapeCheck
from sparkle.workers.station import Station
from sparkle.workers.worker import Worker
from tests.conftest import Eventually
from tests.engine_stand_in import CRASH_CODE, StandInEngine
from tests.worker_at_work import REGION, TENANT, WAIT_S, Overheard, Producer, at_work, make_job, tokens_of


@pytest_asyncio.fixture
async def producer(connection: Connection) -> Producer:
    return Producer(connection)


async def test_draining_hands_what_runs_to_another_worker_which_goes_on(
    producer: Producer, nats_server: LocalServer, eventually: Eventually
) -> None:
    # one of each class has a request that waits: what is handed over comes straight back to some
    engine = StandInEngine(slots=8)
    async with (
        at_work(nats_server.url, name="w-2", engine=StandInEngine(slots=8)),
        at_work(nats_server.url, name="w-1", engine=engine) as first,
    ):
        jobs = [await producer.submit(make_job("pace_ms=20", max_tokens=80)) for _ in range(6)]
        await eventually(lambda: all(watched.tokens() for watched in jobs))
        mine = [watched for watched in jobs if watched.chunks[0].worker == "w-1"]
        await drain_worker(producer.connection, REGION, "w-1")
        await first.end()
        for watched in jobs:
            result = await watched.result()
            assert result.worker == "w-2"
            assert result.tokens == tokens_of(watched.job)
            assert [token for chunk in watched.read for token in chunk.tokens] == result.tokens
            assert (result.attempt > 1) is (watched in mine)
        await producer.until_empty()


async def test_a_worker_that_is_not_there_cannot_drain(connection: Connection) -> None:
    with pytest.raises(ConfigError, match="no worker named w-9 is connected in region"):
        await drain_worker(connection, REGION, "w-9")
    with pytest.raises(ConfigError, match="worker"):
        await drain_worker(connection, REGION, "w.9")


async def test_a_worker_of_another_region_is_not_drained(
    producer: Producer, nats_server: LocalServer
) -> None:
    async with at_work(nats_server.url, name="w-1") as worker:
        with pytest.raises(ConfigError, match="no worker named w-1 is connected in region eu"):
            await drain_worker(producer.connection, "eu", "w-1")
        assert worker.life.state is WorkerState.READY


async def test_of_two_workers_of_one_name_the_second_does_not_start(
    producer: Producer, nats_server: LocalServer
) -> None:
    """Both would take what is offered to the name, and end each other's jobs."""
    second = StandInEngine(load_ms=1_000 * WAIT_S)
    async with at_work(nats_server.url, name="w-1"):
        async with at_work(nats_server.url, name="w-1", engine=second, ends_with=ConfigError) as worker:
            pass
        assert worker.life.state is WorkerState.STARTING
        assert second.returncode is not None
        watched = await producer.submit(make_job())
        assert (await watched.result()).tokens == tokens_of(watched.job)


async def test_the_name_of_a_worker_that_drains_is_free(
    producer: Producer, nats_server: LocalServer, eventually: Eventually
) -> None:
    async with at_work(nats_server.url, name="w-1", drain_s=60.0) as first:
        watched = await producer.submit(make_job("silent=1"))
        await producer.until_running()
        first.life.interrupt()
        async with at_work(nats_server.url, name="w-1", engine=StandInEngine(load_ms=300.0)) as second:
            assert second.life.state is WorkerState.READY
        assert watched.ends == []


async def test_given_time_a_drain_finishes_what_runs_and_takes_nothing_new(
    producer: Producer, nats_server: LocalServer, eventually: Eventually
) -> None:
    async with at_work(nats_server.url, drain_s=60.0) as worker:
        running = await producer.submit(make_job("pace_ms=20", max_tokens=50))
        await eventually(lambda: running.chunks)
        worker.life.interrupt()
        waiting = await producer.submit(make_job())
        await worker.end()
    assert (await running.result()).tokens == tokens_of(running.job) == running.tokens()
    assert waiting.chunks == []
    assert await producer.num_left() == 1


async def test_a_second_signal_hands_running_jobs_to_another_worker(
    producer: Producer, nats_server: LocalServer, eventually: Eventually
) -> None:
    async with at_work(nats_server.url, name="w-1", drain_s=60.0) as first:
        watched = await producer.submit(make_job("pace_ms=20", max_tokens=80))
        await eventually(lambda: len(watched.tokens()) >= 3)
        first.life.interrupt()
        first.life.interrupt()
        await first.end()
    async with at_work(nats_server.url, name="w-2"):
        result = await watched.result()
        await producer.until_empty()
    assert (result.attempt, result.worker) == (2, "w-2")
    # the second worker went on where the first one ended
    assert result.tokens == tokens_of(watched.job) == watched.tokens(attempt=1) + watched.tokens(attempt=2)
    assert result.text == watched.text(attempt=1) + watched.text(attempt=2)
    assert result.usage.completion_tokens == 80


async def test_a_drain_that_takes_too_long_hands_back(producer: Producer, nats_server: LocalServer) -> None:
    async with at_work(nats_server.url, drain_s=0.1) as worker:
        watched = await producer.submit(make_job("silent=1"))
        await producer.until_running()
        worker.life.interrupt()
        await worker.end()
    assert await producer.num_left() == 1
    assert watched.ends == []


async def test_an_engine_that_ends_is_started_again_and_its_jobs_go_on(
    producer: Producer, nats_server: LocalServer, eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with at_work(nats_server.url) as worker:
        jobs = [await producer.submit(make_job("pace_ms=20", max_tokens=60)) for _ in range(3)]
        await eventually(lambda: all(watched.chunks for watched in jobs))
        os.kill(worker.engine.pid, signal.SIGKILL)
        for watched in jobs:
            result = await watched.result()
            assert (result.attempt, result.tokens) == (2, tokens_of(watched.job))
            assert watched.tokens(attempt=1) + watched.tokens(attempt=2) == result.tokens
        await producer.until_empty()
    events = [record.message for record in caplog.records]
    assert events.count("job_handed_back") == 3
    assert events.count("engine_restarted") == 1


async def test_a_job_whose_end_is_being_stored_is_not_handed_back_where_the_engine_ends(
    producer: Producer,
    nats_server: LocalServer,
    eventually: Eventually,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    storing, go_on, store_end = asyncio.Event(), asyncio.Event(), ReplyStream.store_end

    async def held(replies: ReplyStream, tenant: str, end: Result | Failure) -> bool:
        storing.set()
        await go_on.wait()
        return await store_end(replies, tenant, end)

    monkeypatch.setattr(ReplyStream, "store_end", held)
    async with at_work(nats_server.url) as worker:
        watched = await producer.submit(make_job())
        await storing.wait()
        os.kill(worker.engine.pid, signal.SIGKILL)
        await eventually(lambda: "engine_restarted" in [record.message for record in caplog.records])
        go_on.set()
        assert (await watched.result()).attempt == 1
        await producer.until_empty()
    events = [record.message for record in caplog.records]
    assert (events.count("job_done"), events.count("job_handed_back")) == (1, 0)


@pytest.mark.parametrize("stop", ["hang_after=3", "SIGSTOP"])
async def test_an_engine_that_hangs_is_ended_and_started_again(
    producer: Producer, nats_server: LocalServer, eventually: Eventually, stop: str
) -> None:
    async with at_work(nats_server.url, pass_limit_s=1.0) as worker:
        pid = worker.engine.pid
        if stop == "SIGSTOP":
            watched = await producer.submit(make_job("pace_ms=50", max_tokens=30))
            await eventually(lambda: watched.chunks)
            os.kill(pid, signal.SIGSTOP)
            assert (await watched.result()).tokens == tokens_of(watched.job)
        else:
            watched = await producer.submit(make_job(stop))
            failure = await watched.failure()
            assert failure.code is FailureCode.POISON_JOB
        await producer.until_empty()
        assert worker.engine.pid != pid


async def test_a_job_that_ends_three_engines_is_given_up_and_no_other(
    producer: Producer, nats_server: LocalServer, eventually: Eventually
) -> None:
    async with at_work(nats_server.url) as worker:
        others = [await producer.submit(make_job("pace_ms=20", max_tokens=60)) for _ in range(3)]
        await eventually(lambda: all(watched.chunks for watched in others))
        poison = await producer.submit(make_job("crash_after=2"))
        failure = await poison.failure()
        for watched in others:
            assert (await watched.result()).tokens == tokens_of(watched.job)
        await producer.until_empty()
        assert worker.engine.returncode is None
    assert failure.code is FailureCode.POISON_JOB
    assert failure.message == "3 times in a row the engine ended with this job in it; not tried again"


async def test_strikes_go_along_to_the_next_worker(producer: Producer, nats_server: LocalServer) -> None:
    job = make_job("crash_after=2")
    watched = await producer.watch(job)
    told = Answered(job=job.id, attempt=1, tokens=[], strikes=2)
    await AnswerRecords(producer.connection).store(TENANT, told)
    await producer.publisher.publish(job, PriorityClass.P0, publication=2)
    async with at_work(nats_server.url) as worker:
        pid = worker.engine.pid
        assert (await watched.failure()).code is FailureCode.POISON_JOB
        await producer.until_empty()
        # once was enough
        assert worker.engine.pid != pid


async def test_engines_that_end_over_and_over_end_the_worker(
    producer: Producer, nats_server: LocalServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with at_work(nats_server.url, ends_with=EngineExited):
        for _ in range(2):
            await (await producer.submit(make_job("crash_after=0"))).failure()
    events = [record.message for record in caplog.records]
    assert events.count("engine_ended") == events.count("engine_restarted") + 1 == 6


async def test_a_result_arrives_after_the_server_was_away(
    producer: Producer, nats_server: LocalServer, eventually: Eventually
) -> None:
    async with at_work(nats_server.url):
        watched = await producer.submit(make_job("pace_ms=10", max_tokens=100))
        await eventually(lambda: watched.chunks)
        await nats_server.restart()
        await eventually(lambda: producer.connection.is_up)
        await topology.apply(producer.connection, TopologySettings(regions=REGION))
        assert (await watched.result()).tokens == tokens_of(watched.job)
        # and the worker takes jobs again
        assert (await (await producer.submit(make_job())).result()).tokens


async def test_a_job_leaves_the_queue_only_after_its_end_is_stored(
    producer: Producer, nats_server: LocalServer, eventually: Eventually
) -> None:
    small = TopologySettings(regions=REGION, results_max_bytes=2000)
    await topology.apply(producer.connection, small)
    full = subjects.result(TENANT, make_job().id)
    await producer.connection.publish_stored(full, b"x" * 1800, headers={})
    heard = await Overheard.listen(producer.connection)
    async with at_work(nats_server.url):
        watched = await producer.submit(make_job(max_tokens=20))
        await eventually(lambda: len(watched.tokens()) == 20)
        later = len(heard.heartbeats) + 4
        await eventually(lambda: len(heard.heartbeats) >= later)
        assert heard.heartbeats[-1].running == [watched.job.id]
        assert await producer.num_left() == 1
        assert watched.ends == []
        await topology.apply(producer.connection, TopologySettings(regions=REGION))
        assert (await watched.result()).tokens == watched.tokens()
        await producer.until_empty()


async def test_a_job_delivered_again_while_it_runs_is_run_once(
    producer: Producer, nats_server: LocalServer, caplog: pytest.LogCaptureFixture
) -> None:
    # redelivered long before the lease says that work goes on
    await topology.apply(producer.connection, TopologySettings(regions=REGION, ack_wait_s=0.2))
    async with at_work(nats_server.url):
        watched = await producer.submit(make_job("pace_ms=20", max_tokens=50))
        result = await watched.result()
        await producer.until_empty()
    assert "job_delivered_while_running" in [record.message for record in caplog.records]
    assert result.attempt == 1
    assert watched.tokens() == result.tokens == tokens_of(watched.job)
    assert {chunk.attempt for chunk in watched.chunks} == {1}


async def test_two_tenants_with_one_job_id_run_one_after_the_other(
    producer: Producer, nats_server: LocalServer
) -> None:
    ours = make_job("pace_ms=10", max_tokens=100)
    theirs = make_job("other", max_tokens=3, id=ours.id, tenant="other")
    async with at_work(nats_server.url):
        first = await producer.submit(ours)
        await producer.until_running()
        address = JobAddress(REGION, PriorityClass.P0, "other", theirs.id)
        await producer.connection.publish_stored(address.subject, encode(theirs), headers={})
        assert (await first.result()).tokens == tokens_of(ours)
        await producer.until_empty()
    end = await producer.feed.stored_end("other", ours.id)
    assert isinstance(end, Result)
    assert end.tokens == tokens_of(theirs)
    assert end.attempt >= 2


async def test_without_streams_it_ends_at_once_and_names_the_way_out(nats_server: LocalServer) -> None:
    with pytest.raises(TopologyMissing, match="sparkle topology apply"):
        async with at_work(nats_server.url):
            pass


@pytest.mark.parametrize(
    ("fails_with", "error"), [(CRASH_CODE, EngineExited), (UNUSABLE_CODE, CheckpointError)]
)
async def test_an_engine_that_never_becomes_ready_ends_it(
    fails_with: int, error: type[SparkleError], connection: Connection, nats_server: LocalServer
) -> None:
    with pytest.raises(error):
        async with at_work(nats_server.url, engine=StandInEngine(slots=4, fails_with=fails_with)):
            pass


async def test_a_signal_while_the_model_loads_ends_both_processes(
    connection: Connection, nats_server: LocalServer, eventually: Eventually
) -> None:
    engine, life = StandInEngine(slots=4, load_ms=3_600_000), LifeCycle()
    settings = WorkerSettings(region=REGION, nats=nats_server.url)
    worker = asyncio.create_task(run_worker(settings, engine, life))
    await eventually(lambda: _has_process(engine))
    life.interrupt()
    async with asyncio.timeout(WAIT_S):
        await worker
    assert engine.returncode == -signal.SIGKILL


async def test_a_connection_that_ends_for_good_ends_the_worker(
    connection: Connection, nats_server: LocalServer
) -> None:
    own = await Connection.open(ConnectionSettings(url=nats_server.url))
    engine = StandInEngine(slots=4)
    await engine.start()
    station = Station(
        worker="w-1",
        settings=WorkerSettings(region=REGION),
        connection=own,
        replies=ReplyStream(own, "w-1"),
        seals=JobSeals(),
        records=AnswerRecords(own),
        offers=Offers(own, REGION, "w-1"),
        engine=engine,
        metrics=(metrics := WorkerMetrics()),
        unix_s=SteadyUnixClock(),
        shapes=ShapeCheck(CheckProcess(), metrics),
    )
    life = LifeCycle()
    heart = HeartbeatSender(own, Pulse(worker="w-1", region=REGION, life=life).heartbeat)
    heir = Heir(own, REGION, "w-1", "0123456789abcdef", on_handed_on=metrics.rescued.inc)
    serving = asyncio.create_task(Worker(station, life, heart, heir).serve())
    producer = Producer(connection)
    await producer.submit(make_job("silent=1"))
    await producer.until_running()
    await own.close()
    with pytest.raises(NotConnected, match=r"closed|for good"):
        await serving
    await engine.stop()


async def test_metrics_count_jobs_and_tokens_without_ids(
    producer: Producer, nats_server: LocalServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with at_work(nats_server.url, metrics_port=0):
        job = make_job("one two three", max_tokens=6)
        await (await producer.submit(job, PriorityClass.P1)).result()
        await (await producer.submit(make_job("fail=too_long"))).failure()
        follow_up = await producer.watch(make_job())
        await producer.publisher.publish(follow_up.job, PriorityClass.P0, publication=1, home="w-gone")
        await follow_up.result()
        await producer.until_empty()
        (port,) = [vars(record)["port"] for record in caplog.records if record.message == "metrics_served"]
        page = await _http_get(port)
    lines = page.splitlines()
    for line in (
        'sparkle_jobs_total{outcome="length"} 2.0',
        'sparkle_jobs_total{outcome="too_long"} 1.0',
        'sparkle_deliveries_total{priority="p1"} 1.0',
        'sparkle_follow_ups_total{way="gone"} 1.0',
        'sparkle_tokens_total{kind="prompt"} 4.0',
        'sparkle_tokens_total{kind="completion"} 14.0',
        'sparkle_queue_seconds_count{priority="p1"} 1.0',
        "sparkle_first_token_seconds_count 2.0",
        "sparkle_time_per_output_token_seconds_count 2.0",
        "sparkle_slots 4.0",
        "sparkle_slots_busy 0.0",
    ):
        assert line in lines
    assert job.id not in page
    assert TENANT not in page


async def test_no_content_reaches_the_log(
    producer: Producer, nats_server: LocalServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with at_work(nats_server.url):
        job = make_job("SECRET think=1", max_tokens=4)
        result = await (await producer.submit(job)).result()
        await (await producer.submit(make_job("SECRET fail=engine_error"))).failure()
        await (await producer.submit_bytes(make_job(), b"SECRET")).failure()
        await producer.until_empty()
    logged = "\n".join(str(vars(record)) for record in caplog.records)
    assert job.id in logged
    for content in ("SECRET", result.text, result.reasoning, str(result.tokens)):
        assert content not in logged


def _has_process(engine: StandInEngine) -> bool:
    try:
        return engine.pid > 0
    except AssertionError:
        return False


async def _http_get(port: int) -> str:
    """The page of metrics at this port."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /metrics HTTP/1.0\r\n\r\n")
    page = await reader.read()
    writer.close()
    await writer.wait_closed()
    return page.decode()
