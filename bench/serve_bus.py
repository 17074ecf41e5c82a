"""Jobs put to a worker by way of the queue, as a producer does. Knows no figure and no engine.

The nats-server, the worker with its engine process and the client are the real ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Sequence
from contextlib import AsyncExitStack, contextmanager

from bench.jobs_1000 import REGION, worker_process
from bench.serve_load import Answered, Asked
from sparkle.producers.client import Client
from sparkle.producers.settings import ClientSettings
from sparkle.queue import topology
from sparkle.queue.connection import Connection, ConnectionSettings
from sparkle.queue.local import LocalServer
from sparkle.queue.topology import TopologySettings


class BusServer:
    """A `Server` behind the queue. Made by `bus_server`."""

    def __init__(self, runner: asyncio.Runner, client: Client) -> None:
        self._runner = runner
        self._client = client

    def answer(self, load: Sequence[Asked]) -> list[Answered]:
        """See Server. Raises JobFailed where a job ends without an answer."""
        return self._runner.run(self._answer(load))

    async def _answer(self, load: Sequence[Asked]) -> list[Answered]:
        began_s = asyncio.get_running_loop().time()
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._follow(asked, began_s)) for asked in load]
        return [task.result() for task in tasks]

    async def _follow(self, asked: Asked, began_s: float) -> Answered:
        loop, comes_s, answered = asyncio.get_running_loop(), began_s + asked.at_s, Answered()
        await asyncio.sleep(comes_s - loop.time())
        handle = await self._client.submit(asked.job)
        async for chunk in handle:
            answered.add(chunk.tokens, loop.time() - comes_s)
        answered.cached_tokens = (await handle.result()).usage.cached_tokens
        return answered


@contextmanager
def bus_server(*flags: str) -> Generator[BusServer]:
    """A queue, a worker with these flags of `sparkle worker`, and a client of both, until the block ends."""
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        try:
            yield BusServer(runner, runner.run(_open(stack, flags)))
        finally:
            runner.run(stack.aclose())


async def _open(stack: AsyncExitStack, flags: Sequence[str]) -> Client:
    server = await stack.enter_async_context(LocalServer())
    connection = await Connection.open(ConnectionSettings(url=server.url, name="bench"))
    await topology.apply(connection, TopologySettings(regions=REGION))
    await connection.close()
    await stack.enter_async_context(worker_process(server.url, *flags))
    return await stack.enter_async_context(await Client.open(ClientSettings(nats=server.url, region=REGION)))
