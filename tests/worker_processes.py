"""Worker processes as programs of their own: to signal, to kill, to read the log of."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol

import psutil  # type: ignore[import-untyped]  # it has no types of its own

from sparkle.config import environment
from tests.worker_at_work import WAIT_S

ROOT = Path(__file__).parents[1]
STAND_IN = (sys.executable, "-m", "tests.stand_in_worker")
TINY = (sys.executable, "-m", "sparkle.cli", "worker")


class WorkerProcess:
    """One worker process, its events and its end."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.lines: list[str] = []
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            self.lines.append(line.decode())

    def events(self) -> list[str]:
        """Names of the events logged so far."""
        return [json.loads(line)["event"] for line in self.lines if line.startswith("{")]

    def engine_pid(self) -> int:
        """The engine process, its one child."""
        (engine,) = psutil.Process(self.process.pid).children()
        return int(engine.pid)

    async def exit_code(self) -> int:
        """Wait for its end."""
        async with asyncio.timeout(WAIT_S):
            await self._reading
            return await self.process.wait()


@asynccontextmanager
async def worker_process(*command: str) -> AsyncGenerator[WorkerProcess]:
    """A worker process, killed after the test if it still runs."""
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=ROOT,
        env={**environment(), "PYTHONPATH": str(ROOT)},
        stdin=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    worker = WorkerProcess(process)
    try:
        yield worker
    finally:
        if process.returncode is None:
            process.kill()
        await worker.exit_code()


class Reachable(Protocol):
    """A server, or a cluster of them."""

    @property
    def url(self) -> str:
        """Where to connect."""
        ...


def stand_in(server: Reachable, *flags: str) -> Sequence[str]:
    """The command of a worker with a stand-in engine."""
    return (*STAND_IN, "--nats", server.url, *flags)
