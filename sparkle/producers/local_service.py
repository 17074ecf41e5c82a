"""A whole service on this machine: nats-server, streams and one worker, ended together. Knows no job."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Self

from sparkle.errors import ConfigError, EngineExited
from sparkle.queue import topology, usage_streams
from sparkle.queue.connection import Connection, ConnectionSettings
from sparkle.queue.control import WorkerRoster
from sparkle.queue.local import LocalServer, LocalServerSettings
from sparkle.queue.server_process import find_binary
from sparkle.queue.topology import TopologySettings
from sparkle.queue.usage_streams import UsageSettings
from sparkle.schemas.control import Heartbeat, WorkerState

WORKER_MODULES = ("torch", "tokenizers", "safetensors", "jinja2")
"""What the extra `worker` brings and a producer's install has not."""

READY_TIMEOUT_S = 300.0
"""How long a worker may take to load its model: a large one comes from a disk."""

STOP_TIMEOUT_S = 10.0
"""How long a worker may take to finish what it runs before it is ended."""

_POLL_S = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalServiceSettings:
    """What the service of this machine is made of."""

    port: int = 0
    """Where the nats-server listens on 127.0.0.1; 0 takes a free port."""

    region: str = "local"
    """The one region served."""

    model: Path | None = None
    """The worker's checkpoint; None is the bundled sparkle-tiny."""

    config: Path | None = None
    """The worker's file of settings; region and queue are ours."""

    keep: Path | None = None
    """Where tenants and usage records lie, to be there the next time; None forgets them at the end."""

    show_worker_log: bool = False
    """Whether the worker writes its log to our stderr, and its memory plan to our stdout."""


class LocalService:
    """Children of this process, ended in the order worker, server."""

    def __init__(self, settings: LocalServiceSettings, on_stage: Callable[[str], None]) -> None:
        """`on_stage` is told in a few words what has been reached."""
        self._settings = settings
        self._on_stage = on_stage
        self._server = LocalServer(LocalServerSettings(port=settings.port, folder=settings.keep))
        self._worker: asyncio.subprocess.Process | None = None
        self._last_lines: deque[str] = deque(maxlen=5)
        self._reader: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """Where clients connect; known once started."""
        return self._server.url

    async def __aenter__(self) -> Self:
        """Start everything; returns when the worker takes jobs.

        Raises ConfigError when something is not installed, NotConnected when the server does not start (its
        port may be taken), EngineExited when the worker ends or is not ready in time.
        """
        check_installed()
        try:
            await self._server.start()
            self._on_stage(f"nats-server on {self.url}, memory only")
            connection = await Connection.open(ConnectionSettings(url=self.url, name="sparkle-local"))
            try:
                await topology.apply(connection, TopologySettings(regions=self._settings.region))
                await self._declare_metering()
                self._on_stage(f"streams and consumers of region {self._settings.region} declared")
                await self._start_worker()
                ready = await self._until_ready(connection)
            finally:
                await connection.close()
        except BaseException:
            await self._stop()
            raise
        self._on_stage(f"worker {ready.worker} serves {ready.model} with {ready.slots} slots")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stop()

    async def until_a_part_exits(self) -> None:
        """Wait as long as worker and server run.

        Raises EngineExited with the worker's last words, NotConnected when it was the server.
        """
        parts = [
            asyncio.create_task(self._until_worker_exits()),
            asyncio.create_task(self._server.until_exits()),
        ]
        try:
            done, _ = await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for part in parts:
                part.cancel()
            await asyncio.gather(*parts, return_exceptions=True)
        done.pop().result()

    async def _until_worker_exits(self) -> None:
        assert self._worker is not None, "started before"
        code = await self._worker.wait()
        raise EngineExited(f"the worker ended with code {code}{self._words()}")

    async def _declare_metering(self) -> None:
        meter = await Connection.open(ConnectionSettings(url=self._server.meter_url, name="sparkle-local"))
        try:
            await usage_streams.declare(meter, UsageSettings())
        finally:
            await meter.close()

    async def _start_worker(self) -> None:
        config = [] if self._settings.config is None else ["--config", str(self._settings.config)]
        arguments = [*config, "worker", "--region", self._settings.region, "--nats", self.url, "--metered"]
        if self._settings.model is not None:
            arguments += ["--model", str(self._settings.model)]
        self._worker = await asyncio.create_subprocess_exec(
            sys.executable,
            # a folder named sparkle where we were started is not the package
            "-P",
            "-m",
            "sparkle.cli",
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=None if self._settings.show_worker_log else asyncio.subprocess.DEVNULL,
            stderr=None if self._settings.show_worker_log else asyncio.subprocess.PIPE,
            # a Ctrl-C in the terminal is for us: we end the worker, and then what it needs
            start_new_session=True,
        )
        self._on_stage(f"worker started, process {self._worker.pid}; it loads its model")
        if self._worker.stderr is not None:
            self._reader = asyncio.create_task(self._read_lines(self._worker.stderr))

    async def _until_ready(self, connection: Connection) -> Heartbeat:
        roster = WorkerRoster(connection, self._settings.region)
        await roster.start()
        exited = asyncio.create_task(self.until_a_part_exits())
        try:
            async with asyncio.timeout(READY_TIMEOUT_S):
                while not exited.done():
                    for heartbeat in roster.workers():
                        if heartbeat.state is WorkerState.READY:
                            return heartbeat
                    await asyncio.wait({exited}, timeout=_POLL_S)
        except TimeoutError:
            raise EngineExited(f"the worker was not ready within {READY_TIMEOUT_S:.0f} s") from None
        finally:
            exited.cancel()
            await asyncio.wait({exited})
        exited.result()
        raise AssertionError("a part that exits is an error")

    async def _read_lines(self, stream: asyncio.StreamReader) -> None:
        """Keep the log's last lines: it holds ids and counts, never content."""
        async for line in stream:
            self._last_lines.append(line.decode(errors="replace").rstrip())

    def _words(self) -> str:
        return f"; it said last: {self._last_lines[-1]}" if self._last_lines else ""

    async def _stop(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None and worker.returncode is None:
            worker.send_signal(signal.SIGTERM)
            try:
                async with asyncio.timeout(STOP_TIMEOUT_S):
                    await worker.wait()
            except TimeoutError:
                worker.kill()
                await worker.wait()
        if self._reader is not None:
            await self._reader
        await self._server.stop()


def check_installed() -> None:
    """Raises ConfigError naming what a local service needs and this install has not."""
    missing = [name for name in WORKER_MODULES if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"{', '.join(missing)}: not installed; `pip install 'sparkle-inference[worker,local]'` "
            "brings what a worker on this machine needs"
        )
    find_binary()
