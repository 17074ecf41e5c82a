"""A client process that stands still: the server lets it go, and it has every token when it goes on."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import urllib.request
from collections.abc import AsyncGenerator

import psutil  # type: ignore[import-untyped]  # it has no types of its own
import pytest
import pytest_asyncio

from sparkle.config import environment
from sparkle.queue import topology
from sparkle.queue.connection import Connection, ConnectionSettings
from sparkle.queue.local import LocalServer
from sparkle.queue.server_config import MAX_PENDING_BYTES
from sparkle.queue.topology import TopologySettings
from tests.conftest import REGION, Eventually
from tests.nats_cluster import free_ports, own_host
from tests.worker_processes import ROOT, WorkerProcess, stand_in, worker_process

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(300)]

JOBS, TEXT_CHARS, PACE_MS, MAX_TOKENS = 24, 4_000, 20, 1_800
PENDING_BYTES = 8 * 1024 * 1024
AHEAD = 150
"""Tokens, 3 s of the answer: more than was sent between the client's stop and its return."""


class NarrowServer(LocalServer):
    """A server that lets little wait for one client, and says how often it has let one go."""

    def __init__(self) -> None:
        super().__init__()
        self._monitor = f"{own_host()}:{free_ports(own_host())[0]}"

    def _config(self) -> str:
        narrow = (
            super()._config().replace(f"max_pending: {MAX_PENDING_BYTES}", f"max_pending: {PENDING_BYTES}")
        )
        return f'{narrow}http: "{self._monitor}"\n'

    def num_let_go(self) -> int:
        """Connections that were ended as too much waited for them."""
        with urllib.request.urlopen(f"http://{self._monitor}/varz", timeout=5.0) as answer:
            return int(json.load(answer)["slow_consumers"])


@pytest_asyncio.fixture
async def narrow(nats_binary: None) -> AsyncGenerator[NarrowServer]:
    """The server, with the streams declared."""
    async with NarrowServer() as server:
        operator = await Connection.open(ConnectionSettings(url=server.url))
        await topology.apply(operator, TopologySettings(regions=REGION))
        await operator.close()
        yield server


async def test_a_client_that_stands_still_has_every_token_when_it_goes_on(
    narrow: NarrowServer, patiently: Eventually
) -> None:
    flags = {
        "nats": narrow.url,
        "jobs": JOBS,
        "text-chars": TEXT_CHARS,
        "pace-ms": PACE_MS,
        "max-tokens": MAX_TOKENS,
        "ahead": AHEAD,
    }
    arguments = [part for name, value in flags.items() for part in (f"--{name}", str(value))]
    async with worker_process(*stand_in(narrow, "--slots", str(JOBS))) as worker:
        client = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.reading_client",
            *arguments,
            cwd=ROOT,
            env={**environment(), "PYTHONPATH": str(ROOT)},
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            assert client.stdout is not None
            assert await client.stdout.readline() == b"begun\n"
            client.send_signal(signal.SIGSTOP)
            await patiently(narrow.num_let_go)
            client.send_signal(signal.SIGCONT)
            told = json.loads(await client.stdout.readline())
            assert await client.wait() == 0
        finally:
            if client.returncode is None:
                client.kill()
                await client.wait()
        # none had its end meanwhile, which would have brought the rest: the chunks themselves came again
        assert told["ended"] == 0
        for before, after in zip(told["known"], told["read"], strict=True):
            assert after >= before + AHEAD
        assert _rss_mib(worker) < 400
        assert worker.process.returncode is None


def _rss_mib(worker: WorkerProcess) -> float:
    """What the worker process holds; 24 answers of 7 MB may be kept in it, and no other copies of them."""
    return float(psutil.Process(worker.process.pid).memory_info().rss) / 1024**2
