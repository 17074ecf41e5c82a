"""A gateway, a worker with a stand-in engine, and OpenAI's client: started once for all tests of a file."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest_asyncio
from openai import AsyncOpenAI

from sparkle.queue import topology
from sparkle.queue.connection import Connection, ConnectionSettings
from sparkle.queue.local import LocalServer
from sparkle.queue.topology import TopologySettings
from tests.gateway_at_work import REGION, GatewayAtWork, gateway_at_work
from tests.worker_at_work import AtWork, at_work


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def queue_url(nats_binary: None) -> AsyncGenerator[str]:
    """A server of the file's own."""
    async with LocalServer() as server:
        yield server.url


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def connection(queue_url: str) -> AsyncGenerator[Connection]:
    """A connection to it; the streams are declared."""
    opened = await Connection.open(ConnectionSettings(url=queue_url, name="test"))
    await topology.apply(opened, TopologySettings(regions=REGION))
    yield opened
    await opened.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def worker(queue_url: str, connection: Connection) -> AsyncGenerator[AtWork]:
    """A worker whose answers are scripted by completions' prompts."""
    async with at_work(queue_url) as working:
        yield working


@pytest_asyncio.fixture(loop_scope="module")
async def gateway(queue_url: str, connection: Connection) -> AsyncGenerator[GatewayAtWork]:
    """A gateway without keys, each test's own."""
    async with gateway_at_work(queue_url) as working:
        yield working


@pytest_asyncio.fixture(loop_scope="module")
async def client(gateway: GatewayAtWork, worker: AtWork) -> AsyncGenerator[AsyncOpenAI]:
    """OpenAI's client; jobs will be answered."""
    async with gateway.client() as opened:
        yield opened
