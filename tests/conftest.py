"""What every test can have: a real nats-server of its own, with the streams declared, and fixed seeds."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import AsyncGenerator, Awaitable, Callable

import pytest
import pytest_asyncio
from hypothesis import HealthCheck, settings

from sparkle.config import environment
from sparkle.errors import ConfigError
from sparkle.queue import topology
from sparkle.queue.connection import Connection, ConnectionSettings
from sparkle.queue.local import LocalServer
from sparkle.queue.server_process import find_binary
from sparkle.queue.topology import TopologySettings
from tests.nats_cluster import NatsCluster

REGION = "local"
POLL_S = 0.002

Eventually = Callable[[Callable[[], object]], Awaitable[None]]


def pytest_configure() -> None:
    """Lets a busy machine draw its examples as slowly as it does: that is no fault of a test."""
    settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("busy")


@pytest.fixture(scope="session", autouse=True)
def interruptible() -> None:
    """Programs under test heed SIGINT, which a background job ignores, and SIGHUP, which nohup ignores."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(autouse=True)
def seed() -> None:
    """Every test draws the same numbers on every run."""
    random.seed(20)


@pytest.fixture
def eventually() -> Eventually:
    """`await eventually(lambda: ...)`: returns as soon as it is true, fails after 10 s."""
    return _until_true(10.0)


@pytest.fixture
def patiently() -> Eventually:
    """The same for what a cluster takes its time for: it fails after 60 s."""
    return _until_true(60.0)


def _until_true(limit_s: float) -> Eventually:
    async def wait(condition: Callable[[], object]) -> None:
        try:
            async with asyncio.timeout(limit_s):
                while not condition():  # noqa: ASYNC110 - the condition has no event of its own
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            pytest.fail(f"the condition did not come true within {limit_s:.0f} s")

    return wait


@pytest.fixture(scope="session")
def nats_binary() -> None:
    """A server's binary is there: without one, skip on a laptop and fail in CI."""
    try:
        find_binary()
    except ConfigError as error:
        if environment().get("CI"):
            pytest.fail(str(error))
        pytest.skip(str(error))


@pytest_asyncio.fixture
async def nats_server(nats_binary: None) -> AsyncGenerator[LocalServer]:
    """A server of the test's own, empty, on a free port; it takes 50 ms."""
    async with LocalServer() as server:
        yield server


@pytest_asyncio.fixture
async def connection(nats_server: LocalServer) -> AsyncGenerator[Connection]:
    """A connection to a server where the streams of region `local` are declared."""
    opened = await Connection.open(ConnectionSettings(url=nats_server.url, name="test"))
    await topology.apply(opened, TopologySettings(regions=REGION))
    yield opened
    await opened.close()


@pytest_asyncio.fixture
async def nats_cluster(nats_binary: None) -> AsyncGenerator[NatsCluster]:
    """Three servers of the test's own with the streams of region `local` declared; it takes a second."""
    async with NatsCluster() as cluster:
        await cluster.apply()
        yield cluster
