"""A queue, a worker with a stand-in engine and a gateway in one process. Run as a program."""

from __future__ import annotations

import asyncio
import sys

from sparkle.queue import topology
from sparkle.queue.connection import Connection, ConnectionSettings
from sparkle.queue.local import LocalServer
from sparkle.queue.topology import TopologySettings
from tests.gateway_at_work import REGION, gateway_at_work
from tests.worker_at_work import at_work


async def main() -> None:
    """Tell the gateway's address, answer until stdin ends."""
    async with LocalServer() as server:
        connection = await Connection.open(ConnectionSettings(url=server.url, name="test"))
        await topology.apply(connection, TopologySettings(regions=REGION))
        deadline_s = float(sys.argv[1])
        async with at_work(server.url), gateway_at_work(server.url, deadline_s=deadline_s) as gateway:
            print(gateway.url, flush=True)  # noqa: T201 - what whoever started it waits for
            await asyncio.to_thread(sys.stdin.read)
        await connection.close()


if __name__ == "__main__":
    asyncio.run(main())
