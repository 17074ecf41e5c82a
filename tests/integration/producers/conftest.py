"""A worker with a script instead of a model, on the real queue, and clients to ask it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable

import pytest_asyncio

from sparkle.errors import FailureCode
from sparkle.producers.client import Client
from sparkle.producers.outbox import OutboxTiming
from sparkle.producers.settings import ClientSettings
from sparkle.queue.connection import Connection, ConnectionSettings
from sparkle.queue.delivery import Delivery
from sparkle.queue.lease import Lease
from sparkle.queue.local import LocalServer
from sparkle.queue.puller import Puller
from sparkle.queue.replies import ReplyStream
from sparkle.schemas.answer import Channel, Chunk, Failure, FinishReason, Result, Usage
from sparkle.schemas.codec import decode
from sparkle.schemas.job import Job

REGION = "local"
SLOTS = 32


class Run:
    """One delivery of one job, and what the script does with it."""

    def __init__(self, worker: ScriptedWorker, lease: Lease) -> None:
        self.worker = worker
        self.lease = lease
        self.job = decode(lease.payload, Job)
        assert self.job.tenant is not None
        self.tenant = self.job.tenant

    def chunk(self, index: int) -> Chunk:
        """Token `index` of the one answer that this worker knows: a, b, c…"""
        return Chunk(
            job=self.job.id,
            attempt=self.lease.attempt,
            seq=index,
            first_index=index,
            tokens=[index],
            text=letter(index),
            text_start=index,
            channel=Channel.ANSWER,
            worker=self.worker.name,
        )

    async def write(self, start: int, end: int) -> None:
        """Send tokens `start` to `end`."""
        for index in range(start, end):
            await self.worker.replies.send(self.tenant, self.chunk(index))

    async def finish(self) -> None:
        """Store the whole answer, then acknowledge."""
        await self.end(self.result())

    def result(self) -> Result:
        """The whole answer."""
        length = self.job.max_tokens
        return Result(
            job=self.job.id,
            attempt=self.lease.attempt,
            worker=self.worker.name,
            text=answer(length),
            tokens=list(range(length)),
            finish_reason=FinishReason.LENGTH,
            usage=Usage(prompt_tokens=3, completion_tokens=length, queue_s=0, first_token_s=0, total_s=0),
        )

    async def fail(self, code: FailureCode) -> None:
        """Store a failure, then acknowledge."""
        await self.end(Failure(job=self.job.id, code=code, message="as the script says", retryable=False))

    async def end(self, end: Result | Failure) -> None:
        """Store an end, then acknowledge."""
        await self.worker.replies.store_end(self.tenant, end)
        await self.lease.ack()


Script = Callable[[Run], Awaitable[None]]


def letter(index: int) -> str:
    """The text of token `index`."""
    return chr(97 + index % 26)


def answer(length: int) -> str:
    """The text of the first `length` tokens."""
    return "".join(map(letter, range(length)))


async def whole_answer(run: Run) -> None:
    """The script of a worker that simply answers."""
    await run.write(0, run.job.max_tokens)
    await run.finish()


class ScriptedWorker:
    """Pulls jobs as a worker does, and does with each what the script says."""

    def __init__(self, connection: Connection, name: str, script: Script) -> None:
        self.name = name
        self.script = script
        self.runs: list[str] = []
        """Ids of the jobs run, in order; a job run twice is here twice."""
        self.running: set[str] = set()
        self.doubled: set[str] = set()
        """Jobs that were run twice at once."""
        self.replies = ReplyStream(connection, name)
        self._connection = connection
        self._tasks: set[asyncio.Task[None]] = set()
        self._puller = Puller(connection, REGION, lambda: SLOTS - len(self._tasks), self._deliver)
        self._pulling: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to take jobs."""
        await self.replies.start()
        self._pulling = asyncio.create_task(self._puller.run())

    async def stop(self) -> None:
        """Take no more, leave what runs."""
        assert self._pulling is not None
        tasks = {self._pulling, *self._tasks}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.replies.stop()

    async def _deliver(self, delivery: Delivery) -> None:
        task = asyncio.create_task(self._run(Run(self, Lease(self._connection, delivery))))
        self._tasks.add(task)
        task.add_done_callback(self._freed)

    def _freed(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._puller.wake()

    async def _run(self, run: Run) -> None:
        job = run.job.id
        if await self.replies.end_stored(run.tenant, job):
            await run.lease.ack()
            return
        if job in self.running:
            self.doubled.add(job)
        self.runs.append(job)
        self.running.add(job)
        try:
            async with run.lease.hold():
                await self.script(run)
        finally:
            self.running.discard(job)


class Wire:
    """A relay between clients and the server that can be cut, as a network can."""

    def __init__(self, server_url: str) -> None:
        self._host, self._port = server_url.removeprefix("nats://").split(":")
        self._whole = asyncio.Event()
        self._whole.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._listener: asyncio.Server | None = None

    @property
    def url(self) -> str:
        """Where clients connect instead."""
        assert self._listener is not None
        return f"nats://127.0.0.1:{self._listener.sockets[0].getsockname()[1]}"

    async def __aenter__(self) -> Wire:
        self._listener = await asyncio.start_server(self._relay, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._listener is not None
        self._listener.close()
        self.mend()
        self.cut()
        await self._listener.wait_closed()

    def cut(self) -> None:
        """Break every connection; new ones get no answer until `mend`."""
        self._whole.clear()
        for writer in self._writers:
            writer.close()

    def mend(self) -> None:
        """Let connections through again."""
        self._whole.set()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._whole.wait()
        server_reader, server_writer = await asyncio.open_connection(self._host, int(self._port))
        ends = {writer, server_writer}
        self._writers |= ends
        ways = (_copy(reader, server_writer), _copy(server_reader, writer))
        await asyncio.wait({asyncio.create_task(way) for way in ways})
        self._writers -= ends


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    """Ask again and again until it holds; the test's own time limit ends what never does."""
    while not await holds():  # noqa: ASYNC110 - what is asked for is on the server, which tells nobody
        await asyncio.sleep(0.01)


FAST = OutboxTiming(silence_s=0.5, silence_max_s=2.0, reconnect_spread_s=0.05, lost_grace_s=0.5)
"""Short enough for a test to see a lookup."""

StartWorker = Callable[[Script], Awaitable[ScriptedWorker]]
OpenClient = Callable[..., Awaitable[Client]]


@pytest_asyncio.fixture
async def start_worker(connection: Connection) -> AsyncGenerator[StartWorker]:
    """Starts scripted workers named w1, w2…"""
    workers: list[ScriptedWorker] = []

    async def start(script: Script) -> ScriptedWorker:
        worker = ScriptedWorker(connection, f"w{len(workers) + 1}", script)
        workers.append(worker)
        await worker.start()
        return worker

    yield start
    for worker in workers:
        await worker.stop()


@pytest_asyncio.fixture
async def open_client(nats_server: LocalServer) -> AsyncGenerator[OpenClient]:
    """Opens clients of region `local` and tenant `acme`."""
    async with contextlib.AsyncExitStack() as stack:

        async def start(url: str = nats_server.url, *, timing: OutboxTiming = FAST) -> Client:
            settings = ClientSettings(nats=url, region=REGION, tenant="acme", timing=timing)
            return await stack.enter_async_context(await Client.open(settings))

        yield start


@pytest_asyncio.fixture
async def client(open_client: OpenClient, connection: Connection) -> Client:
    """A client of tenant `acme`; the streams are declared."""
    return await open_client()


@pytest_asyncio.fixture
async def second_connection(nats_server: LocalServer) -> AsyncGenerator[Connection]:
    """A connection beside the worker's."""
    opened = await Connection.open(ConnectionSettings(url=nats_server.url, name="second"))
    yield opened
    await opened.close()


@pytest_asyncio.fixture
async def wire(nats_server: LocalServer) -> AsyncGenerator[Wire]:
    """A way to the server that can be cut."""
    async with Wire(nats_server.url) as relay:
        yield relay
