"""1,000 short jobs through one worker process: how many are lost, how many are run or answered twice.

`python -m bench.jobs_1000 --record` starts a nats-server and a worker with the bundled model, and appends a
row to bench/results. The worker, its engine process and the queue are the real ones.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import time
from collections import Counter
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

from bench.record import record
from sparkle.queue import topology
from sparkle.queue.answers import AnswerFeed
from sparkle.queue.connection import Connection, ConnectionSettings
from sparkle.queue.envelope import Envelope
from sparkle.queue.local import LocalServer
from sparkle.queue.outgoing import JobPublisher
from sparkle.queue.topology import TopologySettings
from sparkle.schemas import subjects
from sparkle.schemas.answer import Chunk, Failure, Result
from sparkle.schemas.codec import decode
from sparkle.schemas.control import UsageRecord
from sparkle.schemas.job import Job
from sparkle.schemas.priority import ServiceRates, classify, estimate_prompt_tokens

REGION, TENANT = "local", "bench"
MAX_TOKENS = 8
STALL_S = 120.0
COMMAND = "import typer; from sparkle.workers.command import worker; typer.run(worker)"


@dataclass(slots=True)
class Tally:
    """What came back, by job id."""

    ends: dict[str, list[Result | Failure]] = field(default_factory=dict[str, list[Result | Failure]])
    tokens: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    runs: Counter[str] = field(default_factory=Counter[str])
    progress: asyncio.Event = field(default_factory=asyncio.Event)

    def take_chunk(self, chunk: Chunk) -> None:
        """Some tokens came."""
        self.tokens.setdefault(chunk.job, []).extend(chunk.tokens)

    def take_end(self, end: Result | Failure) -> None:
        """A stored end came."""
        self.ends.setdefault(end.job, []).append(end)
        self.progress.set()

    async def take_usage(self, envelope: Envelope) -> None:
        """A worker says that it has run a job."""
        self.runs[decode(envelope.payload, UsageRecord).job] += 1
        self.progress.set()

    def lost(self, jobs: list[Job]) -> int:
        """Jobs without an answer, or whose chunks are not its tokens."""
        return sum(not self._answered(job.id) for job in jobs)

    def doubled(self, jobs: list[Job]) -> int:
        """Jobs that were run, or ended, more than once."""
        return sum(len(self.ends.get(job.id, ())) > 1 or self.runs[job.id] > 1 for job in jobs)

    def _answered(self, job: str) -> bool:
        (end, *_) = self.ends.get(job, [None])
        return isinstance(end, Result) and end.tokens == self.tokens.get(job)


@contextlib.asynccontextmanager
async def worker_process(url: str, *flags: str) -> AsyncGenerator[None]:
    """One worker process, with the bundled model where `flags` name none; drained at the end."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", COMMAND, "--region", REGION, "--nats", url, *flags),
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        process.terminate()
        await process.wait()


async def run(num_jobs: int, slots: int, at_once: int) -> tuple[int, int, float]:
    """Jobs lost, jobs doubled, seconds from the worker's start to the last end."""
    async with LocalServer() as server:
        connection = await Connection.open(ConnectionSettings(url=server.url, name="bench"))
        await topology.apply(connection, TopologySettings(regions=REGION))
        jobs = [
            Job(prompt=f"Note {number}: ", max_tokens=MAX_TOKENS, tenant=TENANT, region=REGION)
            for number in range(num_jobs)
        ]
        tally = Tally()
        await connection.subscribe(subjects.usage(REGION, TENANT, "*"), tally.take_usage)
        async with worker_process(server.url, "--slots", str(slots)):
            started_s = time.monotonic()
            await submit(connection, jobs, tally, at_once)
            seconds = time.monotonic() - started_s
        await connection.close()
        return tally.lost(jobs), tally.doubled(jobs), seconds


async def submit(connection: Connection, jobs: list[Job], tally: Tally, at_once: int) -> None:
    """Keep `at_once` jobs on the queue until all have ended, or nothing has come for `STALL_S`."""
    feed, publisher = AnswerFeed(connection), JobPublisher(connection)
    submitted = 0
    while len(tally.runs) < len(jobs):
        while submitted < len(jobs) and submitted - len(tally.ends) < at_once:
            job = jobs[submitted]
            await feed.open(TENANT, job.id, tally.take_chunk, tally.take_end)
            priority = classify(estimate_prompt_tokens(job), job.max_tokens, ServiceRates())
            await publisher.publish(job, priority, publication=1)
            submitted += 1
        tally.progress.clear()
        try:
            async with asyncio.timeout(STALL_S):
                await tally.progress.wait()
        except TimeoutError:
            return


def main() -> None:
    """Measure, print, and append the row; exit 1 when a job was lost or doubled."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--at-once", type=int, default=64, help="jobs on the queue at the same time")
    parser.add_argument("--record", action="store_true", help="append the row to bench/results")
    arguments = parser.parse_args()
    lost, doubled, seconds = asyncio.run(run(arguments.jobs, arguments.slots, arguments.at_once))
    print(f"{arguments.jobs} jobs in {seconds:.1f} s: {lost} lost, {doubled} doubled")
    value = lost + doubled
    if arguments.record:
        case = f"jobs_{arguments.jobs}_lost_or_doubled"
        record(case, value, "jobs", 0.0, (value, value), file="jobs")
    if value:
        raise SystemExit("every job must be answered, and run, exactly once")


if __name__ == "__main__":
    main()
