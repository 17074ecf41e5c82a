"""What finding a conversation's home costs: submit to lease, with three workers and one local nats-server.

Four kinds of job take turns: one that names no home; one whose home is any of the three; one whose home is
gone; one whose home is full, so that it is waited for. Workers are processes of their own, with the classes
that workers use and no engine. Run from the repository's root: python -m bench.follow_ups
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import statistics
import sys
import time
from collections.abc import AsyncGenerator

from bench.broker import NS_PER_MS, PROMPT, REGION, SLOTS, TENANT, chunk, result, summarise
from bench.record import record
from sparkle.queue import topology
from sparkle.queue.answers import AnswerFeed
from sparkle.queue.connection import Connection, ConnectionSettings
from sparkle.queue.delivery import Delivery
from sparkle.queue.handover import OfferDesk, Offers, Way
from sparkle.queue.lease import Lease
from sparkle.queue.local import LocalServer
from sparkle.queue.outgoing import JobPublisher
from sparkle.queue.puller import Puller
from sparkle.queue.replies import ReplyStream
from sparkle.queue.topology import TopologySettings
from sparkle.schemas.answer import Chunk, Failure, Result
from sparkle.schemas.job import Job
from sparkle.schemas.priority import PriorityClass
from sparkle.workers.slots import Slots

HOMES = ("w-1", "w-2", "w-3")
FULL, GONE = "w-full", "w-gone"
KINDS = ("plain", "follow_up", "home_gone", "home_full")


async def work(url: str, name: str) -> None:
    """A worker's process: leases jobs and says when, until it is ended. The full one has no slot at all."""
    connection = await Connection.open(ConnectionSettings(url=url, name=name))
    replies = ReplyStream(connection, name)
    offers = Offers(connection, REGION, name)
    running: set[asyncio.Task[None]] = set()

    async def answer(lease: Lease) -> None:
        if await offers.offer(lease) is Way.HANDED_OVER:
            return
        leased_ns = time.monotonic_ns()
        job = lease.address.job
        async with lease.hold():
            first = chunk(job, 0, leased_ns).model_copy(update={"worker": name})
            await replies.send(TENANT, first)
            await replies.store_end(TENANT, result(job))
            await lease.ack()

    def free_slot(task: asyncio.Task[None]) -> None:
        running.discard(task)
        slots.freed()
        puller.wake()

    async def deliver(delivery: Delivery) -> None:
        task = asyncio.create_task(answer(Lease(connection, delivery)))
        running.add(task)
        task.add_done_callback(free_slot)

    puller = Puller(connection, REGION, lambda: slots.free, deliver, on_answer=lambda: slots.freed())
    slots = Slots(0 if name == FULL else SLOTS, running.__len__, lambda: puller.asked)
    await OfferDesk(connection, REGION, name, slots, deliver).start()
    await connection.echo(5.0)
    print("ready", flush=True)
    await puller.run()


class Asker:
    """Submits one job after the other, and takes the time of each lease."""

    def __init__(self, connection: Connection) -> None:
        self._feed = AnswerFeed(connection)
        self._publisher = JobPublisher(connection)
        self._homes = itertools.cycle(HOMES)

    async def lease_ms(self, kind: str) -> float:
        """Milliseconds from submit to lease. Raises RuntimeError when a follow-up did not run at home."""
        home = {"follow_up": next(self._homes), "home_gone": GONE, "home_full": FULL}.get(kind)
        job = Job(prompt=PROMPT, tenant=TENANT, region=REGION)
        chunks: list[Chunk] = []
        ended = asyncio.Event()

        def take_end(_: Result | Failure) -> None:
            ended.set()

        await self._feed.open(TENANT, job.id, chunks.append, take_end)
        submitted_ns = time.monotonic_ns()
        await self._publisher.publish(job, PriorityClass.P1, publication=1, home=home)
        await ended.wait()
        await self._feed.close(TENANT, job.id)
        if kind == "follow_up" and chunks[0].worker != home:
            raise RuntimeError(f"a follow-up of {home} ran at {chunks[0].worker}")
        return (int(chunks[0].text) - submitted_ns) / NS_PER_MS


@contextlib.asynccontextmanager
async def workers(url: str) -> AsyncGenerator[None]:
    """The workers' processes, ready, and ended at the end."""
    async with contextlib.AsyncExitStack() as stack:
        started: list[asyncio.subprocess.Process] = []
        for name in (*HOMES, FULL):
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "bench.follow_ups", "--work-at", url, "--name", name),
                stdout=asyncio.subprocess.PIPE,
            )
            started.append(process)
            stack.push_async_callback(process.wait)
            stack.callback(process.kill)
        for process in started:
            assert process.stdout is not None
            await process.stdout.readline()
        yield


async def measure(rounds: int, jobs: int) -> dict[str, list[list[float]]]:
    """By kind the milliseconds of each round's `jobs` jobs, after a round that does not count."""
    measured: dict[str, list[list[float]]] = {kind: [] for kind in KINDS}
    async with LocalServer() as server:
        connection = await Connection.open(ConnectionSettings(url=server.url, name="bench"))
        await topology.apply(connection, TopologySettings(regions=REGION))
        asker = Asker(connection)
        async with workers(server.url):
            for _ in range(1 + rounds):
                taken: dict[str, list[float]] = {kind: [] for kind in KINDS}
                for _, kind in itertools.product(range(jobs), KINDS):
                    taken[kind].append(await asker.lease_ms(kind))
                for kind in KINDS:
                    measured[kind].append(taken[kind])
        await connection.close()
    return {kind: values[1:] for kind, values in measured.items()}


def main() -> None:
    """Measure, print a table, append the rows: the floor of each is a job of no conversation."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--jobs", type=int, default=30, help="jobs of each kind a round")
    parser.add_argument("--record", action="store_true", help="append rows to bench/results")
    parser.add_argument("--work-at", help=argparse.SUPPRESS)
    parser.add_argument("--name", default="", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work_at:
        asyncio.run(work(arguments.work_at, arguments.name))
        return
    measured = asyncio.run(measure(arguments.rounds, arguments.jobs))
    print(f"{'ms':22}{'p50':>8}{'p95':>8}{'p99':>8}{'medians of rounds':>22}")
    floor = summarise("plain", measured.pop("plain"))
    for kind, rounds in measured.items():
        median = summarise(kind, rounds)
        medians = [statistics.median(each) for each in rounds]
        if arguments.record:
            spread = (min(medians), max(medians))
            record(f"queue_{kind}_to_lease_ms_p50", median, "ms", floor, spread, file="broker")


if __name__ == "__main__":
    main()
