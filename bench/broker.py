"""What the queue adds: from submit to lease, and from token to consumer, over one local nats-server.

Two processes, as in life: this one submits and consumes, the other leases and answers; both through the
classes that clients and workers use. The engine is left out. The floor is a bare message between the same
two processes. Run from the repository's root: python -m bench.broker
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import statistics
import sys
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

from bench.record import record
from sparkle.queue import topology
from sparkle.queue.answers import AnswerFeed
from sparkle.queue.connection import Connection, ConnectionSettings, Envelope
from sparkle.queue.delivery import Delivery
from sparkle.queue.lease import Lease
from sparkle.queue.local import LocalServer
from sparkle.queue.outgoing import JobPublisher
from sparkle.queue.puller import Puller
from sparkle.queue.replies import ReplyStream
from sparkle.queue.topology import TopologySettings
from sparkle.schemas.answer import Channel, Chunk, Failure, FinishReason, Result, Usage
from sparkle.schemas.job import Job
from sparkle.schemas.priority import PriorityClass

REGION, TENANT, WORKER = "local", "bench", "bench-worker"
FLOOR_SUBJECT = "bench.floor"
PROMPT = "word " * 400
CHUNKS = 20
CHUNK_EVERY_S = 0.005
SLOTS = 8
LIMIT_MS = 5.0
"""What the median of each may be."""

NS_PER_MS = 1e6


@dataclass(slots=True)
class Round:
    """Milliseconds measured in one round."""

    submit_to_lease: list[float] = field(default_factory=list[float])
    token_to_consumer: list[float] = field(default_factory=list[float])
    bare_message: list[float] = field(default_factory=list[float])


def chunk(job: str, seq: int, written_ns: int) -> Chunk:
    """A token, which says in its text when it was written."""
    return Chunk(
        job=job,
        attempt=1,
        seq=seq,
        first_index=seq,
        tokens=[seq],
        text=str(written_ns),
        text_start=0,
        channel=Channel.ANSWER,
        worker=WORKER,
    )


def result(job: str) -> Result:
    """The end of an answer of CHUNKS tokens."""
    usage = Usage(prompt_tokens=400, completion_tokens=CHUNKS, queue_s=0.0, first_token_s=0.0, total_s=0.0)
    return Result(
        job=job,
        attempt=1,
        worker=WORKER,
        text="",
        tokens=list(range(CHUNKS)),
        finish_reason=FinishReason.LENGTH,
        usage=usage,
    )


async def work(url: str) -> None:
    """The other process: leases jobs and answers each, until it is ended."""
    connection = await Connection.open(ConnectionSettings(url=url, name=WORKER))
    replies = ReplyStream(connection, WORKER)
    running: set[asyncio.Task[None]] = set()

    async def answer(lease: Lease, leased_ns: int) -> None:
        job = lease.address.job
        async with lease.hold():
            # the first chunk brings the time of the lease; it is no token
            await replies.send(TENANT, chunk(job, 0, leased_ns))
            for seq in range(1, CHUNKS + 1):
                await asyncio.sleep(CHUNK_EVERY_S)
                await replies.send(TENANT, chunk(job, seq, time.monotonic_ns()))
            await asyncio.sleep(CHUNK_EVERY_S)
            await connection.publish(FLOOR_SUBJECT, str(time.monotonic_ns()).encode())
            await asyncio.sleep(CHUNK_EVERY_S)
            await replies.store_end(TENANT, result(job))
            await lease.ack()

    def free_slot(task: asyncio.Task[None]) -> None:
        running.discard(task)
        puller.wake()

    async def deliver(delivery: Delivery) -> None:
        task = asyncio.create_task(answer(Lease(connection, delivery), time.monotonic_ns()))
        running.add(task)
        task.add_done_callback(free_slot)

    puller = Puller(connection, REGION, lambda: SLOTS - len(running), deliver)
    await puller.run()


class Consumer:
    """This process: submits jobs and takes their answers."""

    def __init__(self, connection: Connection) -> None:
        self.measured = Round()
        self._feed = AnswerFeed(connection)
        self._publisher = JobPublisher(connection)

    async def take_bare(self, envelope: Envelope) -> None:
        """A message that none of our classes has touched."""
        self.measured.bare_message.append(_since_ms(int(envelope.payload)))

    async def run_job(self) -> None:
        """One job, from submit to its stored end. Raises RuntimeError when a chunk is missing."""
        job = Job(prompt=PROMPT, tenant=TENANT, region=REGION)
        ended = asyncio.get_running_loop().create_future()
        seen: list[int] = []

        def take_chunk(chunk: Chunk) -> None:
            seen.append(chunk.seq)
            if chunk.seq == 0:
                lease_ms = (int(chunk.text) - submitted_ns) / NS_PER_MS
                self.measured.submit_to_lease.append(lease_ms)
            else:
                self.measured.token_to_consumer.append(_since_ms(int(chunk.text)))

        def take_end(_: Result | Failure) -> None:
            if not ended.done():
                ended.set_result(None)

        await self._feed.open(TENANT, job.id, take_chunk, take_end)
        submitted_ns = time.monotonic_ns()
        await self._publisher.publish(job, PriorityClass.P1, publication=1)
        await ended
        await self._feed.close(TENANT, job.id)
        if seen != list(range(CHUNKS + 1)):
            raise RuntimeError(f"{len(seen)} chunks came, not {CHUNKS + 1} in order")


def _since_ms(then_ns: int) -> float:
    return (time.monotonic_ns() - then_ns) / NS_PER_MS


@contextlib.asynccontextmanager
async def other_process(url: str) -> AsyncGenerator[None]:
    """The worker's process, ended at the end."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "bench.broker", "--work-at", url)
    try:
        yield
    finally:
        process.kill()
        await process.wait()


async def measure(rounds: int, jobs: int, at_once: int) -> list[Round]:
    """Rounds of `jobs` jobs, `at_once` of them at a time, after one that does not count."""
    async with LocalServer() as server:
        connection = await Connection.open(ConnectionSettings(url=server.url, name="bench"))
        await topology.apply(connection, TopologySettings(regions=REGION))
        consumer = Consumer(connection)
        await connection.subscribe(FLOOR_SUBJECT, consumer.take_bare)
        measured: list[Round] = []
        async with other_process(server.url):
            for _ in range(1 + rounds):
                consumer.measured = Round()
                for _ in range(jobs // at_once):
                    await asyncio.gather(*(consumer.run_job() for _ in range(at_once)))
                measured.append(consumer.measured)
        await connection.close()
        return measured[1:]


def summarise(name: str, rounds: list[list[float]]) -> float:
    """Print p50, p95 and p99 of all rounds together, and the medians' spread; the median of the medians."""
    percentiles = statistics.quantiles([value for values in rounds for value in values], n=100)
    medians = [statistics.median(values) for values in rounds]
    print(
        f"{name:22}{percentiles[49]:8.2f}{percentiles[94]:8.2f}{percentiles[98]:8.2f}"
        f"{min(medians):10.2f} to {max(medians):.2f}"
    )
    return statistics.median(medians)


def main() -> None:
    """Measure, print a table, append the rows; exit 1 when a median is over its limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--jobs", type=int, default=60, help="jobs a round")
    parser.add_argument("--at-once", type=int, default=1, help="jobs at the same time")
    parser.add_argument("--record", action="store_true", help="append rows to bench/results")
    parser.add_argument("--work-at", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work_at:
        asyncio.run(work(arguments.work_at))
        return
    rounds = asyncio.run(measure(arguments.rounds, arguments.jobs, arguments.at_once))
    print(f"{'ms':22}{'p50':>8}{'p95':>8}{'p99':>8}{'medians of rounds':>22}")
    floor = summarise("bare message", [each.bare_message for each in rounds])
    over: list[str] = []
    for name, values in (
        ("submit_to_lease", [each.submit_to_lease for each in rounds]),
        ("token_to_consumer", [each.token_to_consumer for each in rounds]),
    ):
        median = summarise(name, values)
        medians = [statistics.median(each) for each in values]
        if arguments.record:
            spread = (min(medians), max(medians))
            record(f"queue_{name}_ms_p50", median, "ms", floor, spread, file="broker")
        if median > LIMIT_MS:
            over.append(f"{name}: {median:.2f} ms")
    if over:
        raise SystemExit(f"over {LIMIT_MS} ms: {', '.join(over)}")


if __name__ == "__main__":
    main()
