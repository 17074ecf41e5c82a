"""The worker's side of the engine process: starts it, exchanges frames, sees it end. Knows no torch."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

from sparkle.engine.arguments import command_line
from sparkle.engine.frames import (
    LENGTH_BYTES,
    CancelRequest,
    EndConversation,
    Frame,
    Ping,
    Ready,
    Refused,
    Shutdown,
    Submit,
    body_length,
    decode,
    encode,
)
from sparkle.engine.settings import EngineSettings
from sparkle.errors import ConfigError, EngineExited


class EngineProcess:
    """One engine process. `start`, then `submit` and `cancel` while one task reads `frames`, then `stop`.

    Where it has ended by itself, `restart` and `frames` anew.
    """

    def __init__(self, model: Path, settings: EngineSettings, *, start_timeout_s: float = 600.0) -> None:
        self._model = model
        self._settings = settings
        self._start_timeout_s = start_timeout_s
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._watch: asyncio.Task[None] | None = None
        self._ready: Ready | None = None
        self._is_loaded = False
        self._stopping = False
        self.exited = asyncio.Event()
        """Set once the process has ended, for whatever reason."""

    @property
    def ready(self) -> Ready:
        """What the engine said when the model was loaded; while it loads again, what it said before."""
        assert self._ready is not None, "start() has not returned yet"
        return self._ready

    @property
    def pid(self) -> int:
        """The process's id."""
        assert self._process is not None, "start() has not been called"
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """How the process ended, as subprocess has it; None while it runs."""
        return None if self._process is None else self._process.returncode

    async def start(self) -> Ready:
        """Start the process and wait for its model.

        Raises ConfigError, with the engine's own sentence, where the model or a setting cannot be used;
        EngineExited when the process ends or takes too long.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = await asyncio.create_subprocess_exec(
                *self._command(theirs.fileno()),
                pass_fds=(theirs.fileno(),),
                stdin=asyncio.subprocess.DEVNULL,
            )
        self._watch = asyncio.create_task(self._wait(self._process))
        self._reader, self._writer = await asyncio.open_connection(sock=ours)
        try:
            async with asyncio.timeout(self._start_timeout_s):
                frame = await self._next_frame(self._reader)
        except TimeoutError:
            await self.stop(grace_s=0.0)
            raise EngineExited(f"the engine was not ready after {self._start_timeout_s} s") from None
        if isinstance(frame, Refused):
            await self.stop()
            raise ConfigError(frame.reason)
        if not isinstance(frame, Ready):
            await self.stop()
            raise EngineExited(f"{self._ending()} before it was ready; its log says why")
        self._ready = frame
        self._is_loaded = True
        return frame

    async def restart(self) -> Ready:
        """Start it anew after its end, or in place of one that hangs. Raises what `start` raises."""
        await self.stop(grace_s=0.0)
        self._stopping = False
        self._is_loaded = False
        self.exited.clear()
        try:
            return await self.start()
        except asyncio.CancelledError:
            # one that loads takes no frame in
            await self.stop(grace_s=0.0)
            raise

    @property
    def is_up(self) -> bool:
        """Whether it has said that it is ready, and has not ended since."""
        return self._is_loaded and not self.exited.is_set()

    def ping(self) -> None:
        """Ask it for a sign of life: a frame comes once the pass that runs has ended."""
        self._write(Ping())

    def kill(self) -> None:
        """End it, whatever it does; `frames` then raises EngineExited."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.kill()

    async def submit(self, frame: Submit) -> None:
        """Give the engine a job; waits while it takes nothing in.

        Raises EngineExited where it has ended, or loads again: the job is better off elsewhere.
        """
        if not self.is_up or not self._write(frame) or not await self._taken_in():
            raise EngineExited(self._ending())

    def cancel(self, job: str) -> None:
        """End a job without an answer; an engine that has ended has forgotten it already."""
        self._write(CancelRequest(job=job))

    def end_conversation(self, tenant: str | None, conversation: str) -> None:
        """Forget what is kept of a tenant's conversation; an engine that has ended keeps nothing."""
        self._write(EndConversation(tenant=tenant, conversation=conversation))

    @property
    def frames(self) -> AsyncIterator[Frame]:
        """Every frame after Ready, for one reader; ends after `stop`. Raises EngineExited at another end."""
        return self._frames()

    async def stop(self, *, grace_s: float = 10.0) -> None:
        """End the process: by a frame, after `grace_s` by force. Does nothing a second time."""
        self._stopping = True
        if self._process is None or self._watch is None:
            return
        self._write(Shutdown())
        try:
            async with asyncio.timeout(grace_s):
                await self.exited.wait()
        except TimeoutError:
            self.kill()
        await self._watch
        if self._writer is not None:
            self._writer.close()
            with suppress(ConnectionError):
                await self._writer.wait_closed()

    async def _frames(self) -> AsyncIterator[Frame]:
        assert self._reader is not None, "start() has not returned yet"
        while (frame := await self._next_frame(self._reader)) is not None:
            yield frame
        if not self._stopping:
            raise EngineExited(self._ending())

    async def _next_frame(self, reader: asyncio.StreamReader) -> Frame | None:
        """The next frame; None once the process has ended."""
        try:
            length = body_length(await reader.readexactly(LENGTH_BYTES))
            return decode(await reader.readexactly(length))
        except (asyncio.IncompleteReadError, ConnectionError):
            # it closes the socket a moment before it has ended
            await self.exited.wait()
            return None

    def _write(self, frame: Frame) -> bool:
        """Whether the process is there; never waits, for an engine that hangs must still be ended."""
        if self._writer is None or self.exited.is_set():
            return False
        self._writer.write(encode(frame))
        return True

    async def _taken_in(self) -> bool:
        """Whether all but a little of what was written has left for the process."""
        assert self._writer is not None, "something was written"
        try:
            await self._writer.drain()
        except ConnectionError:
            return False
        return True

    async def _wait(self, process: asyncio.subprocess.Process) -> None:
        await process.wait()
        self.exited.set()

    def _ending(self) -> str:
        code = self.returncode
        if code is None:
            return "the engine process closed its connection"
        how = f"by {signal.Signals(-code).name}" if code < 0 else f"with code {code}"
        return f"the engine process ended {how}"

    def _command(self, fd: int) -> list[str]:
        return [
            sys.executable,
            # a folder named sparkle where we were started is not the package
            "-P",
            "-m",
            "sparkle.engine.process",
            "--fd",
            str(fd),
            *command_line(self._model, self._settings),
        ]
