"""Processes in folders of their own, and all that they leave, say and show: searched for content.

    site/home, tmp, cwd     where its processes may write; everything is searched
    site/logs               what they say, the server's log too
    site/store              the server's files
    user/                   a user's own input and output: not searched

For other programs (a gateway): `spawn` it, add its pages to `site.pages`, drive it, then `search`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Self
from urllib.request import urlopen

import psutil  # type: ignore[import-untyped]  # it has no types of its own

from sparkle.config import environment
from sparkle.queue.connection import Connection, ConnectionSettings, Envelope
from sparkle.queue.local import LocalServer, LocalServerSettings
from tests.canaries import Canaries

ROOT = Path(__file__).parents[1]
MONITORING = (
    *("/varz", "/connz?subs=detail&auth=true", "/routez", "/gatewayz", "/leafz", "/subsz?subs=true"),
    *("/accountz", "/accstatz", "/jsz?accounts=true&streams=true&consumers=true&config=true", "/healthz"),
)
SHARED_FOLDERS = (Path("/dev/shm"), Path("/var/tmp"))
"""Where programs may write without being told a folder."""

READY_S = 110.0


class WatchedServer(LocalServer):
    """A server that logs what it can without trace, to a file, and shows its monitoring pages."""

    def __init__(self, store: Path, log: Path, *, trace: bool) -> None:
        super().__init__(LocalServerSettings(folder=store))
        self._store = store
        self._log = log
        self._trace = trace

    def _config(self) -> str:
        config = super()._config()
        assert "debug: false" in config
        loud = config.replace("debug: false", "debug: true")
        loud = loud.replace("trace: false", "trace: true") if self._trace else loud
        return f'{loud}\nhttp: "127.0.0.1:-1"\nlog_file: {json.dumps(str(self._log))}\n'

    @property
    def monitor_url(self) -> str:
        """Where its monitoring is."""
        (file,) = self._store.glob(f"*_{self.pid}.ports")
        pages: list[str] = json.loads(file.read_text(encoding="utf-8"))["monitoring"]
        return pages[0].rstrip("/")


class Site:
    """A server, the processes that a test starts, and what is known of them."""

    def __init__(self, *, trace: bool = False) -> None:
        """`trace` has the server log what it must not."""
        # not in pytest's own folder, whose name has the test's parameters in it
        self.folder = Path(tempfile.mkdtemp(prefix="sparkle-site-"))
        self.root, self.user = self.folder / "site", self.folder / "user"
        for path in (self.user, *(self.root / name for name in ("home", "tmp", "cwd", "logs", "store"))):
            path.mkdir(parents=True)
        self.server = WatchedServer(self.root / "store", self.root / "logs" / "nats-server", trace=trace)
        self.pages: list[str] = []
        """Addresses of pages that anybody may read: metrics."""
        self.evidence: defaultdict[str, bytearray] = defaultdict(bytearray)
        """By where it was: what was seen apart from files."""
        self.outside: list[Path] = []
        """Files that a test itself has made elsewhere: removed at the end."""
        self.processes: dict[str, asyncio.subprocess.Process] = {}
        self._started_s = time.time()
        self._notes = NoteRecords(self)
        self._tap: Connection | None = None

    async def __aenter__(self) -> Self:
        await self.server.start()
        self._tap = await Connection.open(ConnectionSettings(url=self.server.url, name="tap"))
        await self._tap.subscribe(">", self._overhear)
        logging.getLogger().addHandler(self._notes)
        return self

    async def __aexit__(self, *_: object) -> None:
        logging.getLogger().removeHandler(self._notes)
        if self._tap is not None:
            await self._tap.close()
        for process in self.processes.values():
            if process.returncode is None:
                process.kill()
            await process.wait()
        await self.server.stop()
        for path in self.outside:
            path.unlink()
        shutil.rmtree(self.folder)

    async def spawn(
        self, name: str, *command: str, stdin: bytes | None = None, own_output: bool = False
    ) -> asyncio.subprocess.Process:
        """Start a program. With `own_output` its stdout is its user's, who asked for content."""
        logs = self.user if own_output else self.root / "logs"
        with (logs / f"{name}.out").open("wb") as out, (self.root / "logs" / f"{name}.err").open("wb") as err:
            process = await asyncio.create_subprocess_exec(
                *command,
                cwd=self.root / "cwd",
                env=self._environment(),
                stdin=asyncio.subprocess.PIPE,
                stdout=out,
                stderr=err,
            )
        self.processes[name] = process
        self.look_at_processes()
        assert process.stdin is not None
        if stdin is not None:
            process.stdin.write(stdin)
        process.stdin.close()
        return process

    async def sparkle(
        self, name: str, *arguments: str, stdin: bytes | None = None, own_output: bool = False
    ) -> asyncio.subprocess.Process:
        """Start `sparkle …`."""
        command = (sys.executable, "-P", "-m", "sparkle.cli", *arguments)
        return await self.spawn(name, *command, stdin=stdin, own_output=own_output)

    def said(self, name: str) -> str:
        """What a program has written to stderr so far."""
        return (self.root / "logs" / f"{name}.err").read_text(encoding="utf-8", errors="replace")

    async def until_said(self, name: str, words: str) -> None:
        """Until a program has said this. Raises TimeoutError, and RuntimeError if it ends before."""
        async with asyncio.timeout(READY_S):
            while words not in self.said(name):
                if self.processes[name].returncode is not None:
                    raise RuntimeError(f"{name} ended: {self.said(name)[-2000:]}")
                await asyncio.sleep(0.02)

    def note(self, where: str, text: str) -> None:
        """Something else that was shown: an error's text, a header."""
        self.evidence[where] += text.encode(errors="replace") + b"\n"

    def look_at_processes(self) -> None:
        """Arguments and environment of all processes that run now."""
        for process in _family(self.server.pid, *(process.pid for process in self.processes.values())):
            for name in ("cmdline", "environ", "comm"):
                with suppress(OSError):
                    data = Path(f"/proc/{process.pid}/{name}").read_bytes()
                    # a process can change both, and another may have its number later
                    self.evidence[f"{name} of process {process.pid}"] += data
            for thread in Path(f"/proc/{process.pid}/task").glob("*/comm"):
                with suppress(OSError):
                    self.evidence[f"name of thread {thread.parent.name}"] += thread.read_bytes()

    async def look_at_pages(self) -> None:
        """The server's monitoring, and the pages of others."""
        for address in (*(self.server.monitor_url + path for path in MONITORING), *self.pages):
            body = await asyncio.to_thread(_read, address)
            self.evidence[f"page {address}"] += body

    def files(self) -> Iterator[Path]:
        """What processes have written: all below the site's folders, and what is new in shared ones."""
        yield from (path for path in self.root.rglob("*") if path.is_file())
        for folder in (*SHARED_FOLDERS, ROOT):
            for path, _, names in os.walk(folder):
                if not {".git", ".cache", ".venv"} & set(Path(path).parts):
                    yield from (file for file in (Path(path) / name for name in names) if self._is_new(file))

    def search(self, canaries: Canaries) -> list[str]:
        """Every place with content in it: where, which field, in what form."""
        found: list[str] = []
        for file in self.files():
            with suppress(OSError):
                hits = canaries.found_in(file.read_bytes())
                found += [f"file {file.name}: {hit}" for hit in hits]
                found += [f"name of a file: {hit}" for hit in canaries.found_in(os.fsencode(file))]
        for where, data in self.evidence.items():
            found += [f"{where}: {hit}" for hit in canaries.found_in(bytes(data))]
        return found

    def _is_new(self, file: Path) -> bool:
        with suppress(OSError):
            return file.is_file() and file.stat().st_mtime >= self._started_s
        return False

    def _environment(self) -> dict[str, str]:
        kept = {name: value for name, value in environment().items() if name in ("PATH", "OMP_NUM_THREADS")}
        home = str(self.root / "home")
        return {**kept, "HOME": home, "TMPDIR": str(self.root / "tmp"), "PYTHONPATH": str(ROOT)}

    async def _overhear(self, envelope: Envelope) -> None:
        """Payloads are for content; subjects and headers are not."""
        self.note("subjects and headers", f"{envelope.subject} {envelope.reply} {dict(envelope.headers)}")


class NoteRecords(logging.Handler):
    """Log records of the test's own process, a producer, with everything in them."""

    def __init__(self, site: Site) -> None:
        super().__init__(logging.DEBUG)
        self._site = site

    def emit(self, record: logging.LogRecord) -> None:
        """Note it."""
        self._site.note("log of the client", f"{record.getMessage()} {vars(record)}")


def _family(*pids: int | None) -> Iterator[psutil.Process]:
    """These processes and all below them."""
    for pid in pids:
        with suppress(psutil.Error):
            process = psutil.Process(pid)
            yield process
            yield from process.children(recursive=True)


def _read(address: str) -> bytes:
    with urlopen(address, timeout=10) as answer:
        body: bytes = answer.read()
        return body
