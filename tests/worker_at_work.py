"""A worker with a stand-in engine in the test's own loop, and as much of a producer as its tests need."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from sparkle.config import load
from sparkle.engine.client import EngineProcess
from sparkle.errors import SparkleError
from sparkle.producers.answer_order import AnswerOrder
from sparkle.queue.answers import AnswerFeed
from sparkle.queue.connection import Connection
from sparkle.queue.envelope import Envelope, Seal
from sparkle.queue.outgoing import JobPublisher
from sparkle.queue.status import ClassStatus, read_classes
from sparkle.schemas import subjects
from sparkle.schemas.answer import Channel, Chunk, Failure, Result
from sparkle.schemas.answered import Answered
from sparkle.schemas.codec import decode
from sparkle.schemas.control import Heartbeat, UsageRecord, WorkerState
from sparkle.schemas.job import Job
from sparkle.schemas.priority import PriorityClass
from sparkle.workers.assembly import run_worker
from sparkle.workers.lifecycle import LifeCycle
from sparkle.workers.settings import WorkerSettings
from tests.engine_stand_in import StandInEngine, token_of

REGION = "local"
TENANT = "acme"
WAIT_S = 20.0


def make_job(script: str = "hello", *, max_tokens: int = 8, **fields: object) -> Job:
    """A job for the stand-in engine; `script` is its prompt."""
    given: dict[str, object] = {
        "prompt": script,
        "max_tokens": max_tokens,
        "tenant": TENANT,
        "region": REGION,
    }
    return Job.model_validate({**given, **fields})


def tokens_of(job: Job) -> list[int]:
    """All tokens that the stand-in writes for the job."""
    return [token_of(job.id, index) for index in range(job.max_tokens)]


@dataclass(slots=True)
class Watched:
    """What has come back for one job."""

    job: Job
    order: AnswerOrder = field(default_factory=AnswerOrder)
    read: list[Chunk] = field(default_factory=list[Chunk])
    """What a consumer would have read: each token and character once."""
    chunks: list[Chunk] = field(default_factory=list[Chunk])
    ends: list[Result | Failure] = field(default_factory=list[Result | Failure])
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def take(self, chunk: Chunk) -> None:
        """One more chunk."""
        self.chunks.append(chunk)
        self.read += self.order.take(chunk)

    def answered(self, from_index: int) -> Answered:
        """What a worker is told that asks."""
        return self.order.answered(self.job.id, from_index)

    async def end(self) -> Result | Failure:
        """The job's stored end."""
        async with asyncio.timeout(WAIT_S):
            await self.ended.wait()
        return self.ends[0]

    async def result(self) -> Result:
        """The job's answer."""
        end = await self.end()
        assert isinstance(end, Result), end
        return end

    async def failure(self) -> Failure:
        """Why there is no answer."""
        end = await self.end()
        assert isinstance(end, Failure)
        return end

    def tokens(self, attempt: int = 1) -> list[int]:
        """Tokens of one attempt's chunks, checked to be without a gap."""
        chunks = [chunk for chunk in self.chunks if chunk.attempt == attempt]
        assert [chunk.seq for chunk in chunks] == list(range(len(chunks)))
        return [token for chunk in chunks for token in chunk.tokens]

    def text(self, channel: Channel = Channel.ANSWER, attempt: int = 1) -> str:
        """Text of one attempt's chunks in one channel."""
        return "".join(
            chunk.text for chunk in self.chunks if chunk.channel is channel and chunk.attempt == attempt
        )


class Producer:
    """Submits jobs, and keeps what comes back."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.publisher = JobPublisher(connection)
        self.feed = AnswerFeed(connection)

    async def watch(self, job: Job, key: Seal | None = None) -> Watched:
        """Hear of a job without submitting it, sealed where there is a key."""
        watched = Watched(job)

        def take_end(end: Result | Failure) -> None:
            watched.ends.append(end)
            watched.ended.set()

        await self.feed.open(
            job.tenant or TENANT, job.id, watched.take, take_end, key, answered=watched.answered
        )
        return watched

    async def submit(
        self, job: Job, priority: PriorityClass = PriorityClass.P0, *, key: Seal | None = None
    ) -> Watched:
        """Submit a job and hear of it, both sealed where there is a key."""
        watched = await self.watch(job, key)
        await self.publisher.publish(job, priority, publication=1, key=key)
        return watched

    async def submit_bytes(self, job: Job, payload: bytes) -> Watched:
        """Put bytes of one's own under a job's subject."""
        watched = await self.watch(job)
        address = subjects.JobAddress(REGION, PriorityClass.P0, TENANT, job.id)
        await self.connection.publish_stored(address.subject, payload, headers={})
        return watched

    async def num_left(self) -> int:
        """Messages on the queue, waiting or held."""
        return sum(status.waiting + status.running for status in await self._classes())

    async def until_empty(self) -> None:
        """Until every message has left the queue: an acknowledgement follows its stored end."""
        async with asyncio.timeout(WAIT_S):
            while await self.num_left():  # noqa: ASYNC110 - the server tells nobody
                await asyncio.sleep(0.005)

    async def until_running(self, num_jobs: int = 1) -> None:
        """Until workers hold so many jobs."""
        async with asyncio.timeout(WAIT_S):
            while await self._num_running() < num_jobs:  # noqa: ASYNC110 - the server tells nobody
                await asyncio.sleep(0.005)

    async def _num_running(self) -> int:
        return sum(status.running for status in await self._classes())

    async def _classes(self) -> tuple[ClassStatus, ...]:
        return await read_classes(self.connection, REGION)


@dataclass(slots=True)
class Overheard:
    """What workers say beside the answers."""

    usage: list[UsageRecord] = field(default_factory=list[UsageRecord])
    heartbeats: list[Heartbeat] = field(default_factory=list[Heartbeat])

    @classmethod
    async def listen(cls, connection: Connection) -> Overheard:
        """Hear metering records and heartbeats from now on."""
        heard = cls()

        async def take_usage(envelope: Envelope) -> None:
            heard.usage.append(decode(envelope.payload, UsageRecord))

        async def take_heartbeat(envelope: Envelope) -> None:
            heard.heartbeats.append(decode(envelope.payload, Heartbeat))

        await connection.subscribe(subjects.usage(REGION, "*", "*"), take_usage)
        await connection.subscribe(subjects.heartbeat(), take_heartbeat)
        return heard

    def states(self) -> list[WorkerState]:
        """The states that were told, each once, in their order."""
        return list(dict.fromkeys(heartbeat.state for heartbeat in self.heartbeats))


@dataclass(frozen=True, slots=True)
class AtWork:
    """A worker in this test's loop."""

    life: LifeCycle
    engine: EngineProcess
    task: asyncio.Task[None]

    async def end(self) -> None:
        """Wait for its end. Raises what ended it."""
        async with asyncio.timeout(WAIT_S):
            await self.task


@asynccontextmanager
async def at_work(
    url: str,
    *,
    engine: EngineProcess | None = None,
    ends_with: type[SparkleError] | None = None,
    **settings: object,
) -> AsyncGenerator[AtWork]:
    """A worker that is ready; told to hand back and end after the test, or expected to fail by itself."""
    life = LifeCycle()
    # fewer slots than classes: no waiting request has to run out before the worker can end
    engine = engine or StandInEngine(slots=4)
    flags = {"region": REGION, "nats": url, "heartbeat_s": 0.05, **settings}
    task = asyncio.create_task(
        run_worker(load(WorkerSettings, "worker", environ={}, flags=flags), engine, life)
    )
    worker = AtWork(life, engine, task)
    async with asyncio.timeout(WAIT_S):
        while life.state is WorkerState.STARTING and not task.done():  # noqa: ASYNC110 - a plain value
            await asyncio.sleep(0.002)
    try:
        yield worker
    except BaseException:
        task.cancel()
        await asyncio.wait({task})
        raise
    if ends_with is not None:
        with pytest.raises(ends_with):
            await worker.end()
        return
    life.interrupt()
    life.interrupt()
    await worker.end()
