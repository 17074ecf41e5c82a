"""A queue, a worker with the bundled model and a client under jobs of every fate for as long as one likes.

At the end nothing may be left: no job on the queue, no slot held, no task, no subscription, no connection, no
consumer and no open file more than before; and memory is flat. Run from the repository's root:
python -m bench.soak for two minutes, with --seconds 3600 for an hour
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import psutil  # type: ignore[import-untyped]  # it has no types of its own

from bench.record import record
from bench.soak_load import SoakLoad
from sparkle.engine.client import EngineProcess
from sparkle.engine.settings import EngineSettings, default_model
from sparkle.producers.client import Client
from sparkle.producers.settings import ClientSettings
from sparkle.queue import topology
from sparkle.queue.connection import Connection, ConnectionSettings
from sparkle.queue.control import WorkerRoster
from sparkle.queue.local import LocalServer
from sparkle.queue.topology import TopologySettings
from sparkle.schemas.control import WorkerState
from sparkle.workers.assembly import run_worker
from sparkle.workers.lifecycle import LifeCycle
from sparkle.workers.settings import WorkerSettings

REGION = "local"
MIB = 1024 * 1024
SETTLE_S = 30.0
_LOOK_S = 0.5
RESULTS_S = 10.0
"""How long results stay here: what the server holds has its size soon."""

WARM_SHARE = 0.6
"""Of the time: by then chunks are dropped as fast as they come (after 60 s), and heaps have their size."""

MOST_GROWTH_MIB = 16.0


@dataclass(frozen=True, slots=True)
class Held:
    """What must be the same before and after."""

    tasks: int
    files: int
    connections: int
    subscriptions: int
    consumers: int
    messages: int
    """Jobs on the queue."""

    running: int
    """Jobs that hold a slot."""


@dataclass(slots=True)
class Memory:
    """Resident memory by process, once a second."""

    client_and_worker: list[float] = field(default_factory=list[float])
    engine: list[float] = field(default_factory=list[float])
    server: list[float] = field(default_factory=list[float])

    def growth_mib(self) -> dict[str, float]:
        """By process, the median of the last fifth beside that of the first one after the warm-up."""
        return {name: _growth(samples) for name, samples in asdict(self).items()}


def _growth(samples: list[float]) -> float:
    warm, fifth = int(len(samples) * WARM_SHARE), max(1, len(samples) // 5)
    return statistics.median(samples[-fifth:]) - statistics.median(samples[warm : warm + fifth])


class Site:
    """The whole service in and under this process."""

    def __init__(self, server: LocalServer, connection: Connection, roster: WorkerRoster) -> None:
        self.memory = Memory()
        self._server = server
        self._connection = connection
        self._roster = roster

    async def held(self) -> Held:
        """What is held right now."""
        connections = await self._connections()
        declared = await topology.show(self._connection)
        return Held(
            tasks=len(asyncio.all_tasks()),
            files=psutil.Process().num_fds() + sum(child.num_fds() for child in psutil.Process().children()),
            connections=len(connections),
            subscriptions=sum(int(one["subscriptions"]) for one in connections),
            consumers=len(declared.consumers),
            messages=declared.streams[0].messages,
            running=sum(len(worker.running) for worker in self._roster.workers()),
        )

    async def idle(self) -> Held:
        """What is held once nothing runs or waits, and twice in a row the same.

        Raises RuntimeError after SETTLE_S.
        """
        end_s, last = time.monotonic() + SETTLE_S, None
        while time.monotonic() < end_s:
            now = await self.held()
            if now == last and not now.messages and not now.running:
                return now
            last = now
            await asyncio.sleep(_LOOK_S)
        raise RuntimeError(f"not idle within {SETTLE_S} s: {last}")

    async def until_held(self, before: Held) -> Held:
        """What is held once it is what was held before, or after SETTLE_S."""
        end_s = time.monotonic() + SETTLE_S
        while (now := await self.held()) != before and time.monotonic() < end_s:  # noqa: ASYNC110 - polled
            await asyncio.sleep(_LOOK_S)
        return now

    async def watch(self) -> None:
        """Sample memory once a second, until cancelled."""
        own = psutil.Process()
        while True:
            sizes = {child.pid: child.memory_info().rss / MIB for child in own.children()}
            assert self._server.pid is not None
            self.memory.server.append(sizes.pop(self._server.pid))
            self.memory.engine.append(sum(sizes.values()))
            self.memory.client_and_worker.append(own.memory_info().rss / MIB)
            await asyncio.sleep(1.0)

    async def _connections(self) -> list[dict[str, Any]]:
        answer = await self._connection.request("$SYS.REQ.ACCOUNT.PING.CONNZ", b"{}")
        listed: list[dict[str, Any]] = json.loads(answer.payload)["data"]["connections"]
        return listed


@asynccontextmanager
async def site() -> AsyncGenerator[tuple[Site, Client]]:
    """The service, ready, and a client of it."""
    life = LifeCycle()
    async with LocalServer() as server:
        connection = await Connection.open(ConnectionSettings(url=server.url, name="soak"))
        await topology.apply(connection, TopologySettings(regions=REGION, results_max_age_s=RESULTS_S))
        roster = WorkerRoster(connection, REGION)
        await roster.start()
        engine = EngineProcess(default_model(), EngineSettings(slots=4, kv_tokens=8_192, threads=1))
        settings = WorkerSettings(region=REGION, nats=server.url, name="soak", heartbeat_s=0.25)
        working = asyncio.create_task(run_worker(settings, engine, life))
        try:
            while not any(worker.state is WorkerState.READY for worker in roster.workers()):
                await asyncio.wait({working}, timeout=0.1)
                if working.done():
                    working.result()
            async with await Client.open(ClientSettings(nats=server.url, region=REGION)) as client:
                yield Site(server, connection, roster), client
        finally:
            life.interrupt()
            life.interrupt()
            await working
            await roster.stop()
            await connection.close()


@dataclass(frozen=True, slots=True)
class Soaked:
    """What came of it."""

    fates: dict[str, int]
    before: Held
    after: Held
    growth_mib: dict[str, float]

    @property
    def jobs(self) -> int:
        """Jobs that have their end."""
        return sum(self.fates.values())

    @property
    def left(self) -> dict[str, int]:
        """What is held now and was not before, by kind."""
        before = asdict(self.before)
        return {name: now - before[name] for name, now in asdict(self.after).items() if now != before[name]}


async def soak(seconds: float, *, askers: int) -> Soaked:
    """Load the service for so long, and look at what is left."""
    async with site() as (service, client):
        load = SoakLoad(client, time.time, askers=askers)
        # whatever is made with the first job of a kind is not left by the others
        await load.each_once()
        before = await service.idle()
        stop = asyncio.Event()
        watching = asyncio.create_task(service.watch())
        asking = asyncio.create_task(load.run(stop))
        await asyncio.wait({asking, watching}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        stop.set()
        await asking
        watching.cancel()
        await asyncio.wait({watching})
        after = await service.until_held(before)
        return Soaked(dict(sorted(load.fates.items())), before, after, service.memory.growth_mib())


def main() -> None:
    """Soak, tell, and end with 1 where anything is left or memory grew."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--askers", type=int, default=4, help="jobs at once")
    parser.add_argument("--record", action="store_true", help="append rows to bench/results")
    arguments = parser.parse_args()
    soaked = asyncio.run(soak(arguments.seconds, askers=arguments.askers))
    for fate, count in soaked.fates.items():
        print(f"{fate:32}{count:>8}")
    print(f"held {asdict(soaked.after)}\nleft {soaked.left}")
    print(f"growth in MiB { {name: round(grown, 1) for name, grown in soaked.growth_mib.items()} }")
    worst_mib = max(soaked.growth_mib.values())
    if arguments.record:
        grown = (min(soaked.growth_mib.values()), worst_mib)
        num_jobs = float(soaked.jobs)
        record("soak_seconds", arguments.seconds, "s", None, (arguments.seconds,) * 2, file="soak")
        record("soak_jobs", num_jobs, "jobs", None, (num_jobs, num_jobs), file="soak")
        record("soak_growth_mib", worst_mib, "MiB", 0.0, grown, file="soak")
        record("soak_left", float(len(soaked.left)), "kinds", 0.0, (0.0, 0.0), file="soak")
    if soaked.left or worst_mib > MOST_GROWTH_MIB:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
