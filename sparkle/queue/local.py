"""A nats-server of our own on 127.0.0.1, content in memory only, as for a demo. Knows no stream."""

from __future__ import annotations

import json
import secrets
import shutil
import signal
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from sparkle.config import require_positive
from sparkle.errors import ConfigError, NotConnected
from sparkle.queue.server_config import LIMITS, accounts
from sparkle.queue.server_process import ServerProcess

METER_USER = "meter"
"""User and password of the account METER: like the other one, it is for this machine alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalServerSettings:
    """How the server of our own runs."""

    port: int = 0
    """Where it listens on 127.0.0.1; 0 takes a free one."""

    max_memory_bytes: int = 1024 * 1024 * 1024
    """What all streams together may reserve."""

    max_file_bytes: int = 1024 * 1024 * 1024
    """What usage records and keys, which hold no content, may take on the disk."""

    folder: Path | None = None
    """Where the server's files lie; one that is given stays when it stops, with what METER holds."""

    start_timeout_s: float = 10.0
    """How long it may take to be ready."""

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"port is {self.port} but must be from 0 to 65535")
        require_positive(self, "max_memory_bytes", "max_file_bytes", "start_timeout_s")


class LocalServer:
    """One nats-server child. What it held is gone when it stops; no content reaches a file."""

    def __init__(self, settings: LocalServerSettings | None = None) -> None:
        self.settings = settings or LocalServerSettings()
        self._port = self.settings.port
        self._folder: Path | None = None
        self._process: ServerProcess | None = None

    @property
    def url(self) -> str:
        """Where to connect; known once started, and kept over a restart."""
        return f"nats://127.0.0.1:{self._port}"

    @property
    def meter_url(self) -> str:
        """Where the account METER is reached: usage records and keys, no content."""
        return f"nats://{METER_USER}:{METER_USER}@127.0.0.1:{self._port}"

    @property
    def pid(self) -> int | None:
        """The child's process id while it runs."""
        return None if self._process is None else self._process.pid

    async def start(self) -> None:
        """Start and wait until it takes connections.

        Raises ConfigError without a binary or a folder to use, NotConnected with the server's own words when
        it ends early or takes too long.
        """
        if self.pid is not None:
            return
        self._folder = self._made_folder()
        self._process = ServerProcess(self._folder, start_timeout_s=self.settings.start_timeout_s)
        try:
            self._port = await self._process.start(self._config())
        except NotConnected as error:
            await self.kill()
            if self._port == 0:
                raise
            raise NotConnected(
                f"{error}; if port {self._port} is taken, choose another one, 0 for a free one"
            ) from None
        except BaseException:
            await self.kill()
            raise

    async def stop(self) -> None:
        """End it and remove its files, unless their folder was given. A second call does nothing."""
        await self._end(signal.SIGTERM)

    async def kill(self) -> None:
        """End it at once, as a crash would, and remove its files as `stop` does."""
        await self._end(signal.SIGKILL)

    async def restart(self) -> None:
        """Stop and start again at the same address; all streams are gone then."""
        await self.stop()
        await self.start()

    async def until_exits(self) -> None:
        """Wait as long as it runs. Raises NotConnected when it has ended, as a crash does."""
        assert self._process is not None, "started before"
        await self._process.until_exits()

    def freeze(self) -> None:
        """Stop it where it stands, as a machine that no longer answers; returns once it has."""
        if self._process is not None:
            self._process.freeze()

    def thaw(self) -> None:
        """Let it go on."""
        if self._process is not None:
            self._process.thaw()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def _made_folder(self) -> Path:
        given = self.settings.folder
        if given is None:
            return Path(tempfile.mkdtemp(prefix="sparkle-nats-"))
        folder = given.expanduser()
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"{folder}: cannot be made ({error.strerror}); name another folder") from None
        return folder

    def _config(self) -> str:
        """Nothing but the loopback, and content that may not be stored on a disk."""
        folder = json.dumps(str(self._folder))
        settings = self.settings
        users = accounts(
            content_users=f'users: [ {{ user: "local", password: "{secrets.token_hex(16)}" }} ]',
            meter_users=f'users: [ {{ user: "{METER_USER}", password: "{METER_USER}" }} ]',
            max_memory_bytes=settings.max_memory_bytes,
            max_file_bytes=settings.max_file_bytes,
        )
        return f"""
server_name: "sparkle-local"
listen: "127.0.0.1:{self._port or -1}"
ports_file_dir: {folder}
jetstream {{
  store_dir: {folder}, max_mem: {settings.max_memory_bytes}, max_file: {settings.max_file_bytes}
}}
no_auth_user: "local"
{LIMITS}{users}"""

    async def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            await process.end(how)
        if self._folder is not None and self.settings.folder is None:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._folder = None
