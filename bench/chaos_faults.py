"""What goes wrong in `bench.chaos`: processes killed or stopped, nodes lost, connections cut."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import psutil  # type: ignore[import-untyped]  # it has no types of its own

from sparkle.queue.connection import Connection
from tests.nats_cluster import NatsCluster

Command = Callable[[str, str], Sequence[str]]
"""(the worker's name, where the queue is) -> the program that is this worker."""

FROZEN_S = (2.0, 12.0)
"""A frozen worker stands so long: some are noticed, some are not."""
DOWN_S = 2.0
"""A node that crashed is started again after so long."""


class Workers:
    """Worker processes that a supervisor starts again whenever they end."""

    def __init__(self, command: Command, url: str, count: int) -> None:
        self.killed_s: dict[str, float] = {}
        """When each name was last killed, on the monotonic clock."""
        self._command = command
        self._url = url
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        self._names = [f"w-{number}" for number in range(1, count + 1)]
        self._supervisors: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Workers:
        self._supervisors = [asyncio.create_task(self._supervise(name)) for name in self._names]
        return self

    async def __aexit__(self, *_: object) -> None:
        for supervisor in self._supervisors:
            supervisor.cancel()
        await asyncio.gather(*self._supervisors, return_exceptions=True)
        for process in self._processes.values():
            if process.returncode is None:
                process.kill()
                await process.wait()

    def any(self, draw: random.Random) -> tuple[str, int] | None:
        """The name and process id of one that runs; None where none does."""
        running = [(name, one.pid) for name, one in self._processes.items() if one.returncode is None]
        return draw.choice(running) if running else None

    async def _supervise(self, name: str) -> None:
        while True:
            process = await asyncio.create_subprocess_exec(
                *self._command(name, self._url),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
            )
            self._processes[name] = process
            await process.wait()


class Faults:
    """One fault after the other, drawn from a seed, until cancelled."""

    def __init__(
        self, workers: Workers, cluster: NatsCluster, client: Connection, *, every_s: float, seed: int
    ) -> None:
        self.done: Counter[str] = Counter()
        """By kind."""
        self.all_lost_s: list[float] = []
        """When all nodes were killed, on the monotonic clock."""
        self._workers = workers
        self._cluster = cluster
        self._client = client
        self._every_s = every_s
        self._draw = random.Random(seed)
        self._frozen_engines: set[int] = set()
        self._kinds: dict[str, tuple[int, Callable[[], Awaitable[None]]]] = {
            "worker_killed": (6, self._kill_worker),
            "worker_told_to_end": (3, self._end_worker),
            "worker_frozen": (3, self._freeze_worker),
            "engine_killed": (4, self._kill_engine),
            "engine_frozen": (1, self._freeze_engine),
            "node_killed": (2, self._kill_node),
            "leader_killed": (2, self._kill_leader),
            "all_nodes_killed": (1, self._kill_all_nodes),
            "connection_cut": (4, self._cut_connection),
        }

    async def run(self) -> None:
        """Until cancelled: then nothing stays frozen or down."""
        kinds = list(self._kinds)
        weights = [weight for weight, _ in self._kinds.values()]
        try:
            while True:
                await asyncio.sleep(self._every_s)
                await self.one(self._draw.choices(kinds, weights)[0])
        finally:
            for engine in self._frozen_engines:
                _signal(engine, signal.SIGCONT)
            await self._cluster.start_all()

    async def one(self, kind: str) -> None:
        """One fault of this kind, and what an operator's machinery does about it."""
        await self._kinds[kind][1]()
        self.done[kind] += 1

    @property
    def kinds(self) -> list[str]:
        """All there are."""
        return list(self._kinds)

    async def _kill_worker(self) -> None:
        if (worker := self._workers.any(self._draw)) is not None:
            name, pid = worker
            self._workers.killed_s[name] = time.monotonic()
            _signal(pid, signal.SIGKILL)

    async def _end_worker(self) -> None:
        if (worker := self._workers.any(self._draw)) is not None:
            _signal(worker[1], signal.SIGTERM)

    async def _freeze_worker(self) -> None:
        if (worker := self._workers.any(self._draw)) is not None:
            await self._freeze(worker[1])

    async def _kill_engine(self) -> None:
        if (engine := self._engine()) is not None:
            _signal(engine, signal.SIGKILL)

    async def _freeze_engine(self) -> None:
        if (engine := self._engine()) is not None:
            # its worker notices, and ends it, unless it is killed first
            self._frozen_engines.add(engine)
            _signal(engine, signal.SIGSTOP)

    async def _kill_node(self) -> None:
        node = self._draw.choice(self._cluster.nodes)
        await node.kill()
        await self._mend()

    async def _kill_leader(self) -> None:
        await (await self._cluster.leader()).kill()
        await self._mend()

    async def _kill_all_nodes(self) -> None:
        self.all_lost_s.append(time.monotonic())
        await self._cluster.kill_all()
        await self._mend()

    async def _cut_connection(self) -> None:
        await self._client.reconnect()

    async def _mend(self) -> None:
        await asyncio.sleep(DOWN_S)
        while True:
            # on a machine with much other work nodes take each other for dead: the next fault waits for them
            with suppress(AssertionError):
                await self._cluster.start_all()
                await self._cluster.until_whole()
                return

    async def _freeze(self, pid: int) -> None:
        _signal(pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(self._draw.uniform(*FROZEN_S))
        finally:
            _signal(pid, signal.SIGCONT)

    def _engine(self) -> int | None:
        worker = self._workers.any(self._draw)
        if worker is None:
            return None
        with suppress(psutil.NoSuchProcess):
            for child in psutil.Process(worker[1]).children():
                return int(child.pid)
        return None


def worker_command(name: str, url: str) -> Sequence[str]:
    """A real worker with the bundled model, that notices a frozen engine within some seconds."""
    program = (
        "import sys; from sparkle.workers.settings import WorkerSettings; from pathlib import Path; "
        "from sparkle.workers.serve import serve; "
        "serve(None, {}, flags=dict(region='local', name=sys.argv[1], nats=sys.argv[2], pass_limit_s=20.0), "
        "engine_flags=dict(threads=1))"
    )
    return (sys.executable, "-c", program, name, url)


def _signal(pid: int, how: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, how)
