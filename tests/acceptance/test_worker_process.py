"""Worker processes with real signals, real deaths and real exit codes."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import psutil  # type: ignore[import-untyped]  # it has no types of its own
import pytest
import pytest_asyncio

from sparkle.engine.frames import Ready
from sparkle.queue import topology
from sparkle.queue.connection import Connection
from sparkle.queue.local import LocalServer
from sparkle.queue.topology import TopologySettings
from sparkle.workers.assembly import run_worker
from sparkle.workers.lifecycle import ExitCode, LifeCycle
from sparkle.workers.settings import WorkerSettings
from tests.conftest import Eventually
from tests.engine_stand_in import StandInEngine
from tests.worker_at_work import REGION, Producer, Watched, make_job, tokens_of
from tests.worker_processes import stand_in, worker_process

pytestmark = pytest.mark.acceptance

RUN = "import typer; from sparkle.workers.command import worker; typer.run(worker)"
COMMAND = (sys.executable, "-c", RUN)
PRODUCERS_INSTALL = (sys.executable, "-c", f"import sys; sys.modules['prometheus_client'] = None; {RUN}")


@pytest_asyncio.fixture
async def producer(connection: Connection) -> Producer:
    return Producer(connection)


async def test_given_time_sigterm_finishes_the_running_job_and_ends_with_nought(
    producer: Producer, nats_server: LocalServer, eventually: Eventually
) -> None:
    async with worker_process(*stand_in(nats_server)) as worker:
        watched = await producer.submit(make_job("pace_ms=20", max_tokens=50))
        await eventually(lambda: watched.chunks)
        worker.process.send_signal(signal.SIGTERM)
        assert (await watched.result()).tokens == tokens_of(watched.job)
        assert await worker.exit_code() == ExitCode.OK
    assert await producer.num_left() == 0
    assert worker.events()[-1] == "worker_ended"


async def test_a_second_sigterm_hands_the_job_to_another_process(
    producer: Producer, nats_server: LocalServer, eventually: Eventually
) -> None:
    async with worker_process(*stand_in(nats_server, "--name", "w-1")) as first:
        watched = await producer.submit(make_job("pace_ms=20", max_tokens=100))
        await eventually(lambda: watched.chunks)
        first.process.send_signal(signal.SIGINT)
        await eventually(lambda: "worker_draining" in first.events())
        first.process.send_signal(signal.SIGTERM)
        assert await first.exit_code() == ExitCode.OK
    async with worker_process(*stand_in(nats_server, "--name", "w-2")):
        result = await watched.result()
        await producer.until_empty()
    assert (result.attempt, result.worker, result.tokens) == (2, "w-2", tokens_of(watched.job))
    sent = watched.tokens(attempt=1)
    assert 0 < len(sent) < len(result.tokens)
    assert sent == result.tokens[: len(sent)]


async def test_kill_9_of_a_worker_ends_its_engine_and_loses_nothing(
    producer: Producer, nats_server: LocalServer, eventually: Eventually
) -> None:
    await topology.apply(producer.connection, TopologySettings(regions=REGION, ack_wait_s=1.0))
    async with worker_process(*stand_in(nats_server)) as first:
        watched = await producer.submit(make_job("pace_ms=20", max_tokens=60))
        await eventually(lambda: watched.chunks)
        engine_pid = first.engine_pid()
        first.process.kill()
        await eventually(lambda: _has_ended(engine_pid))
    async with worker_process(*stand_in(nats_server)):
        result = await watched.result()
        await producer.until_empty()
    assert (result.attempt, result.tokens) == (2, tokens_of(watched.job))


async def test_kill_9_of_a_worker_is_noticed_by_another_which_has_its_jobs_go_on(
    producer: Producer, nats_server: LocalServer, eventually: Eventually
) -> None:
    # the queue itself would wait longer than this test does
    await topology.apply(producer.connection, TopologySettings(regions=REGION, ack_wait_s=300.0))
    async with (
        worker_process(*stand_in(nats_server, "--name", "w-1", "--slots", "8")) as first,
        worker_process(*stand_in(nats_server, "--name", "w-2", "--slots", "8")) as second,
    ):
        await eventually(lambda: "heir_found" in first.events())
        jobs = [await producer.submit(make_job("pace_ms=100", max_tokens=50)) for _ in range(8)]
        await eventually(lambda: all(watched.tokens() for watched in jobs))
        lost = [watched for watched in jobs if watched.chunks[0].worker == "w-1"]
        assert lost
        first.process.kill()
        for watched in lost:
            await eventually(partial(_is_at, watched, "w-2"))
        for watched in jobs:
            result = await watched.result()
            assert result.worker == "w-2"
            assert [token for chunk in watched.read for token in chunk.tokens] == result.tokens
            assert result.tokens == tokens_of(watched.job)
        await producer.until_empty()
    assert second.events().count("worker_lost") == 1
    assert second.events().count("job_resumed") == len(lost)


async def test_one_whose_model_still_loads_looks_after_one_that_is_alone(
    producer: Producer, nats_server: LocalServer, eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    loaded = asyncio.Event()

    class Loading(StandInEngine):
        async def start(self) -> Ready:
            await loaded.wait()
            return await super().start()

    settings, life = WorkerSettings(region=REGION, nats=nats_server.url, name="w-2"), LifeCycle()
    async with worker_process(*stand_in(nats_server, "--name", "w-1")) as first:
        watched = await producer.submit(make_job("pace_ms=50", max_tokens=20))
        await eventually(lambda: watched.chunks)
        second = asyncio.create_task(run_worker(settings, Loading(slots=4), life))
        await eventually(lambda: "heir_found" in first.events())
        first.process.kill()
        await eventually(lambda: "worker_lost" in [record.message for record in caplog.records])
        loaded.set()
        result = await watched.result()
    assert (result.worker, result.attempt, result.tokens) == ("w-2", 2, tokens_of(watched.job))
    life.interrupt()
    await second


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
async def test_an_engine_process_that_ends_is_started_again(
    producer: Producer, nats_server: LocalServer, eventually: Eventually, how: signal.Signals
) -> None:
    async with worker_process(*stand_in(nats_server)) as worker:
        jobs = [await producer.submit(make_job("pace_ms=20", max_tokens=60)) for _ in range(3)]
        await eventually(lambda: all(watched.chunks for watched in jobs))
        os.kill(worker.engine_pid(), how)
        for watched in jobs:
            result = await watched.result()
            assert (result.attempt, result.tokens) == (2, tokens_of(watched.job))
            assert watched.tokens(attempt=1) + watched.tokens(attempt=2) == result.tokens
        await producer.until_empty()
    assert worker.events().count("job_handed_back") == 3
    assert worker.events().count("engine_restarted") == 1


async def test_sigterm_hands_the_job_to_another_process_which_goes_on(
    producer: Producer, nats_server: LocalServer, eventually: Eventually
) -> None:
    async with worker_process(*stand_in(nats_server, "--name", "w-1", "--drain-s", "0")) as first:
        watched = await producer.submit(make_job("pace_ms=20", max_tokens=100))
        await eventually(lambda: watched.chunks)
        first.process.send_signal(signal.SIGTERM)
        assert await first.exit_code() == ExitCode.OK
    async with worker_process(*stand_in(nats_server, "--name", "w-2")):
        result = await watched.result()
        await producer.until_empty()
    assert (result.worker, result.tokens) == ("w-2", tokens_of(watched.job))
    assert [token for chunk in watched.read for token in chunk.tokens] == result.tokens


async def test_a_thousand_jobs_are_each_answered_once(producer: Producer, nats_server: LocalServer) -> None:
    async with worker_process(*stand_in(nats_server, "--slots", "16")) as worker:
        jobs = [await producer.submit(make_job("hello", max_tokens=8)) for _ in range(1000)]
        for watched in jobs:
            assert (await watched.result()).tokens == tokens_of(watched.job) == watched.tokens()
        await producer.until_empty()
        worker.process.send_signal(signal.SIGTERM)
        assert await worker.exit_code() == ExitCode.OK
    assert [len(watched.ends) for watched in jobs] == [1] * 1000
    assert worker.events().count("job_done") == 1000


async def test_the_real_command_answers_with_the_bundled_model(
    producer: Producer, nats_server: LocalServer
) -> None:
    flags = ("--region", REGION, "--nats", nats_server.url, "--slots", "2", "--name", "w-1")
    async with worker_process(*COMMAND, *flags) as worker:
        watched = [
            await producer.submit(make_job("The alert says", max_tokens=12, sampling={"seed": 7}))
            for _ in range(2)
        ]
        first, second = [await one.result() for one in watched]
        await producer.until_empty()
        worker.process.send_signal(signal.SIGTERM)
        assert await worker.exit_code() == ExitCode.OK
    # one seed, one answer, whatever runs beside it
    assert first.tokens == second.tokens == watched[0].tokens()
    assert first.text == second.text == watched[0].text()
    assert first.text
    assert 1 <= len(first.tokens) <= 12
    assert first.worker == "w-1"
    assert first.text not in "".join(worker.lines)


def _is_at(watched: Watched, worker: str) -> bool:
    return watched.chunks[-1].worker == worker


def _has_ended(pid: int) -> bool:
    # where nobody waits for orphans, one that has ended is still listed
    return not psutil.pid_exists(pid) or bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)


async def _refused(*flags: str, command: Sequence[str] = COMMAND) -> tuple[int, str]:
    async with worker_process(*command, *flags) as worker:
        code = await worker.exit_code()
    return code, worker.lines[-1]


async def test_the_command_says_what_is_wrong_and_ends_with_its_code(
    nats_server: LocalServer, tmp_path: Path
) -> None:
    assert await _refused("--nats", nats_server.url) == (
        ExitCode.UNUSABLE,
        "sparkle worker: region is missing; say which region's jobs to take, as in --region eu\n",
    )
    code, line = await _refused("--region", "eu", "--nats", nats_server.url, "--model", str(tmp_path))
    assert (code, line) == (
        ExitCode.UNUSABLE,
        f"sparkle worker: model {tmp_path} is no checkpoint: it has no config.json\n",
    )
    code, line = await _refused("--region", "eu", command=PRODUCERS_INSTALL)
    assert code == ExitCode.UNUSABLE
    assert "prometheus_client is not installed; `pip install 'sparkle-inference[worker]'`" in line
    code, line = await _refused("--region", "eu", "--nats", nats_server.url)
    assert code == ExitCode.TOPOLOGY_MISSING
    assert "sparkle topology apply" in line
    url = nats_server.url
    await nats_server.stop()
    code, line = await _refused("--region", "eu", "--nats", url)
    assert code == ExitCode.DISCONNECTED
    assert line.startswith("sparkle worker: no server at 127.0.0.1:")
