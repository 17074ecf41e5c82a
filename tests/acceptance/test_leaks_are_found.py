"""The search of `test_nothing_kept.py` is tested: a planted leak of each kind is found, and where it is."""

from __future__ import annotations

import logging
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path

import pytest
import pytest_asyncio
from prometheus_client import CollectorRegistry, Counter, start_http_server

from sparkle.queue.api import ask
from sparkle.queue.connection import Connection, ConnectionSettings
from tests.canaries import Canaries
from tests.conftest import Eventually
from tests.kept_site import Site

pytestmark = pytest.mark.acceptance

SLEEP = "import sys, time; print('ready', file=sys.stderr, flush=True); time.sleep(600)"
Plant = Callable[[Site, str], Awaitable[None]]


@pytest_asyncio.fixture
async def site(nats_binary: None) -> AsyncGenerator[Site]:
    async with Site() as made:
        yield made


async def connected(site: Site, url: str | None = None, name: str = "planter") -> Connection:
    return await Connection.open(ConnectionSettings(url=url or site.server.url, name=name))


async def run(site: Site, program: str, *arguments: str) -> None:
    process = await site.spawn("planter", sys.executable, "-c", program, *arguments)
    assert await process.wait() == 0


def writes_to(folder: str) -> Plant:
    async def plant(site: Site, canary: str) -> None:
        # of the test's own process only the bytes come: the name of the file is not the leak
        (site.user / "canary").write_text(canary, encoding="utf-8")
        target = site.root / folder / "kept"
        await run(site, f"import shutil; shutil.copy({str(site.user / 'canary')!r}, {str(target)!r})")

    return plant


async def shared_memory(site: Site, canary: str) -> None:
    path = Path("/dev/shm") / f"{site.folder.name}"
    path.write_text(canary, encoding="utf-8")
    site.outside.append(path)


async def name_of_a_file(site: Site, canary: str) -> None:
    (site.root / "tmp" / f"{canary}.lock").touch()


async def standard_output(site: Site, canary: str) -> None:
    process = await site.spawn(
        "planter", sys.executable, "-c", "import sys; print(sys.stdin.read())", stdin=canary.encode()
    )
    assert await process.wait() == 0


async def standard_error(site: Site, canary: str) -> None:
    program = "import sys; sys.stderr.write(repr(sys.stdin.buffer.read()))"
    process = await site.spawn("planter", sys.executable, "-c", program, stdin=canary.encode())
    assert await process.wait() == 0


async def argument(site: Site, canary: str) -> None:
    await site.spawn("planter", sys.executable, "-c", SLEEP, canary)


async def argument_of_a_child(site: Site, canary: str) -> None:
    program = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {SLEEP!r}, sys.stdin.read()])"
    await site.spawn("planter", sys.executable, "-c", program, stdin=canary.encode())
    await site.until_said("planter", "ready")
    site.look_at_processes()


async def variable(site: Site, canary: str) -> None:
    with_variable = f"os.execve(sys.executable, ['python', '-c', {SLEEP!r}], {{'X': sys.stdin.read()}})"
    program = f"import os, sys; {with_variable}"
    await site.spawn("planter", sys.executable, "-c", program, stdin=canary.encode())
    await site.until_said("planter", "ready")
    site.look_at_processes()


async def name_of_a_thread(site: Site, canary: str) -> None:
    program = f"import ctypes, sys; ctypes.CDLL(None).prctl(15, sys.stdin.buffer.read()); {SLEEP}"
    await site.spawn("planter", sys.executable, "-c", program, stdin=canary.encode())
    await site.until_said("planter", "ready")
    site.look_at_processes()


async def log_record(site: Site, canary: str) -> None:
    logging.getLogger("sparkle.planted").error("job_done", extra={"prompt": canary})


async def subject(site: Site, canary: str) -> None:
    connection = await connected(site)
    await connection.publish(f"reply.acme.{canary}", b"")
    await connection.echo(5.0)
    await connection.close()


async def header(site: Site, canary: str) -> None:
    connection = await connected(site)
    await connection.publish("reply.acme.1", b"", headers={"Prompt": canary})
    await connection.echo(5.0)
    await connection.close()


async def name_of_a_connection(site: Site, canary: str) -> None:
    connection = await connected(site, name=canary)
    await site.look_at_pages()
    await connection.close()


async def stream_in_a_file(site: Site, canary: str) -> None:
    connection = await connected(site, site.server.meter_url)
    config = {"name": "KEPT", "subjects": ["kept"], "storage": "file"}
    assert not (await ask(connection, "STREAM.CREATE.KEPT", config)).code
    await connection.publish_stored("kept", canary.encode(), headers={})
    await connection.close()


async def description_of_a_stream(site: Site, canary: str) -> None:
    connection = await connected(site)
    config = {"name": "JOBS", "subjects": ["jobs.>"], "storage": "memory", "description": canary}
    assert not (await ask(connection, "STREAM.CREATE.JOBS", config)).code
    await site.look_at_pages()
    await connection.close()


async def metrics(site: Site, canary: str) -> None:
    registry = CollectorRegistry()
    Counter("jobs", "Jobs", ["prompt"], registry=registry).labels(canary).inc()
    server, thread = start_http_server(0, addr="127.0.0.1", registry=registry)
    site.pages.append(f"http://127.0.0.1:{server.server_port}/metrics")
    await site.look_at_pages()
    server.shutdown()
    server.server_close()
    thread.join()


PLANTS: dict[str, tuple[Plant, str]] = {
    "home": (writes_to("home"), "file kept: planted as text"),
    "tmp": (writes_to("tmp"), "file kept: planted as text"),
    "cwd": (writes_to("cwd"), "file kept: planted as text"),
    "shared memory": (shared_memory, "file sparkle-site-"),
    "name of a file": (name_of_a_file, "name of a file: planted as text"),
    "standard output": (standard_output, "file planter.out: planted as text"),
    "standard error": (standard_error, "file planter.err: planted as text"),
    "argument": (argument, "cmdline of process"),
    "argument of a child": (argument_of_a_child, "cmdline of process"),
    "variable": (variable, "environ of process"),
    "name of a thread": (name_of_a_thread, "name of thread"),
    "log record": (log_record, "log of the client: planted as text"),
    "subject": (subject, "subjects and headers: planted as text"),
    "header": (header, "subjects and headers: planted as text"),
    "name of a connection": (name_of_a_connection, "/connz"),
    "stream in a file": (stream_in_a_file, "file 1.blk: planted as text"),
    "description of a stream": (description_of_a_stream, "/jsz"),
    "metrics": (metrics, "/metrics: planted as text"),
}


@pytest.mark.parametrize("kind", PLANTS)
async def test_a_planted_leak_is_found(kind: str, site: Site) -> None:
    canaries = Canaries()
    plant, place = PLANTS[kind]
    canary = canaries.text("planted")
    await plant(site, canary)
    found = site.search(canaries)
    assert [hit for hit in found if place in hit], found


async def test_a_server_that_traces_is_found(nats_binary: None, eventually: Eventually) -> None:
    canaries = Canaries()
    async with Site(trace=True) as site:
        connection = await connected(site)
        await connection.publish("reply.acme.1", canaries.text("planted").encode())
        await connection.echo(5.0)
        await eventually(lambda: site.search(canaries))
        assert site.search(canaries) == ["file nats-server: planted as text"]
        await connection.close()


async def test_where_nothing_is_planted_nothing_is_found(site: Site) -> None:
    canaries = Canaries()
    canary = canaries.text("planted")
    connection = await connected(site)
    # content goes through the bus, as it may
    await connection.publish("reply.acme.1", canary.encode())
    await connection.echo(5.0)
    process = await site.spawn("reader", "cat", stdin=canary.encode(), own_output=True)
    await process.wait()
    await site.look_at_pages()
    assert site.search(canaries) == []
    assert canary in (site.user / "reader.out").read_text(encoding="utf-8")
    await connection.close()
