"""Jobs through three workers and three nodes while something dies every few seconds: lost, doubled, changed.

Every job's stream is compared with what an undisturbed worker writes for the same prompt. `python -m
bench.chaos --jobs 10000 --record` takes about an hour on two cores that have nothing else to do; `--progress
FILE` keeps the counts, so that a run can be cut short and gone on with. `--stand-in` has an engine without a
model, which starts at once: more faults in the same time, and its rows have names of their own.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import statistics
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from bench.chaos_faults import Faults, Workers, worker_command
from bench.record import record
from sparkle.errors import SparkleError
from sparkle.producers.client import Client
from sparkle.producers.outbox import OutboxTiming
from sparkle.producers.settings import ClientSettings
from sparkle.queue import topology
from sparkle.queue.connection import Connection, ConnectionSettings, Envelope
from sparkle.queue.local import LocalServer
from sparkle.queue.topology import TopologySettings
from sparkle.schemas import subjects
from sparkle.schemas.answer import Channel
from sparkle.schemas.codec import decode
from sparkle.schemas.control import UsageRecord
from sparkle.schemas.job import Job, Sampling
from tests.engine_stand_in import text_of, token_of
from tests.nats_cluster import NUM_NODES, NatsCluster
from tests.worker_processes import STAND_IN

REGION, TENANT = "local", "bench"
NUM_WORKERS = 3
NUM_PROMPTS = 60
MAX_TOKENS = 48
STALL_S = 900.0
"""A job without an end for so long is lost: nodes that are short of time elect leaders for minutes."""
KEEP_EVERY = 100


@dataclass(frozen=True, slots=True)
class Read:
    """What a consumer has read of one answer."""

    tokens: tuple[int, ...]
    text: str


@dataclass(slots=True)
class Tally:
    """What has come of the jobs so far."""

    jobs: int = 0
    lost: int = 0
    doubled: int = 0
    changed_streams: int = 0
    attempts: int = 0
    """Deliveries beyond the first that an answer was written in."""

    resumed_s: list[float] = field(default_factory=list[float])
    """Of each answer whose worker was killed: from the kill to its next token."""

    faults: dict[str, int] = field(default_factory=dict[str, int])
    failures: dict[str, int] = field(default_factory=dict[str, int])
    """Of the jobs lost, how they ended."""

    @property
    def resume_p95_s(self) -> float:
        """Of those 95 of 100 were faster than this."""
        if len(self.resumed_s) < 2:
            return max(self.resumed_s, default=0.0)
        return statistics.quantiles(self.resumed_s, n=20, method="inclusive")[-1]


Expected = Callable[[Job], Read]
"""What is written for a job when nothing goes wrong."""


class Load:
    """So many jobs, some at a time, each compared with the undisturbed answer."""

    def __init__(
        self, client: Client, expected: Expected, workers: Workers, tally: Tally, all_lost_s: Sequence[float]
    ) -> None:
        """`all_lost_s`: when all nodes were killed, on the monotonic clock; it may grow."""
        self._client = client
        self._expected = expected
        self._workers = workers
        self._tally = tally
        self._all_lost_s = all_lost_s
        self._ended_s: dict[str, float] = {}
        self._doubled: set[str] = set()

    async def take_usage(self, envelope: Envelope) -> None:
        """A worker says that a job has its end: a double, where it has had one, unless that was lost."""
        job, now_s = decode(envelope.payload, UsageRecord).job, time.monotonic()
        first_s = self._ended_s.get(job)
        self._ended_s[job] = now_s
        # with all nodes an end can be lost before it is read
        if first_s is None or any(first_s <= lost_s <= now_s for lost_s in self._all_lost_s):
            return
        self._tally.doubled += job not in self._doubled
        self._doubled.add(job)

    async def run(self, jobs: Iterable[Job], at_once: int, on_end: Callable[[], None]) -> None:
        """Until all have ended; `on_end` is called after each."""
        waiting = asyncio.Semaphore(at_once)

        async def one(job: Job) -> None:
            async with waiting:
                await self._ask(job)
            on_end()

        await asyncio.gather(*(one(job) for job in jobs))

    async def _ask(self, job: Job) -> None:
        tally = self._tally
        try:
            async with asyncio.timeout(STALL_S):
                handle = await self._client.submit(job)
                tokens, texts, worker, attempt, begun_s = list[int](), list[str](), "", 0, 0.0
                async for chunk in handle:
                    if chunk.attempt != attempt:
                        now_s, killed_s = time.monotonic(), self._workers.killed_s.get(worker, 0.0)
                        if begun_s < killed_s:
                            tally.resumed_s.append(now_s - killed_s)
                        worker, attempt, begun_s = chunk.worker, chunk.attempt, now_s
                    tokens += chunk.tokens
                    texts.append(chunk.text if chunk.channel is Channel.ANSWER else "")
                result = await handle.result()
        except (SparkleError, TimeoutError) as error:
            kind = str(getattr(error, "code", type(error).__name__))
            tally.failures[kind] = tally.failures.get(kind, 0) + 1
            tally.lost += 1
        else:
            wanted = self._expected(job)
            same = Read(tuple(tokens), "".join(texts)) == wanted == Read(tuple(result.tokens), result.text)
            tally.changed_streams += not same
            tally.attempts += result.attempt - 1
        tally.jobs += 1


def real_job(number: int) -> Job:
    """One of some prompts: its likeliest answer."""
    number %= NUM_PROMPTS
    prompt = f"Note {number}: the alert on host srv-{number * 7 % 100} says"
    return Job(prompt=prompt, max_tokens=MAX_TOKENS, sampling=Sampling(temperature=0.0))


def stand_in_job(_number: int) -> Job:
    """An answer that takes a second."""
    return Job(prompt="pace_ms=20", max_tokens=MAX_TOKENS)


def stand_in_answer(job: Job) -> Read:
    """What the stand-in writes for it."""
    places = range(job.max_tokens)
    return Read(
        tuple(token_of(job.id, place) for place in places),
        "".join(text_of(job.id, place) for place in places),
    )


def stand_in_command(name: str, url: str) -> Sequence[str]:
    """A worker with an engine without a model."""
    flags = ("--name", name, "--nats", url, "--slots", "8", "--drain-s", "0", "--pass-limit-s", "5")
    return (*STAND_IN, *flags)


async def undisturbed() -> Expected:
    """What one real worker writes for each prompt when nothing goes wrong."""
    jobs = [real_job(number) for number in range(NUM_PROMPTS)]
    async with LocalServer() as server, Workers(worker_command, server.url, 1):
        connection = await Connection.open(ConnectionSettings(url=server.url))
        await topology.apply(connection, TopologySettings(regions=REGION))
        async with Client(connection, ClientSettings(region=REGION, tenant=TENANT)) as client:
            handles = [await client.submit(job) for job in jobs]
            results = [await handle.result() for handle in handles]
    read = {
        job.prompt: Read(tuple(result.tokens), result.text) for job, result in zip(jobs, results, strict=True)
    }
    return lambda job: read[job.prompt]


@contextlib.asynccontextmanager
async def going_wrong(faults: Faults) -> AsyncGenerator[None]:
    """Inside, one thing after the other goes wrong; what breaks the faults themselves is raised."""
    task = asyncio.create_task(faults.run())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def run(
    num_jobs: int,
    *,
    at_once: int,
    every_s: float,
    seed: int,
    tally: Tally,
    stand_in: bool,
    on_progress: Callable[[], None] = lambda: None,
) -> Tally:
    """Go on with a tally until it has so many jobs; `on_progress` is called after each."""
    expected = stand_in_answer if stand_in else await undisturbed()
    command, make = (stand_in_command, stand_in_job) if stand_in else (worker_command, real_job)
    before = Counter(tally.faults)
    async with NatsCluster() as cluster, Workers(command, cluster.url, NUM_WORKERS) as workers:
        await cluster.apply(TopologySettings(regions=REGION, replicas=NUM_NODES))
        connection = await Connection.open(ConnectionSettings(url=cluster.url, name="chaos"))
        timing = OutboxTiming(silence_s=5.0, silence_max_s=10.0)
        settings = ClientSettings(region=REGION, tenant=TENANT, timing=timing)
        async with Client(connection, settings) as client:
            faults = Faults(workers, cluster, connection, every_s=every_s, seed=seed)
            load = Load(client, expected, workers, tally, faults.all_lost_s)
            await connection.subscribe(subjects.usage(REGION, TENANT, "*"), load.take_usage)

            def ended() -> None:
                tally.faults = dict(before + faults.done)
                on_progress()

            async with going_wrong(faults):
                await load.run(map(make, range(tally.jobs, num_jobs)), at_once, ended)
    return tally


def main() -> None:
    """Run, print, and append the rows; exit 1 where a job was lost, doubled or changed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--at-once", type=int, default=12, help="jobs open at the same time")
    parser.add_argument("--every-s", type=float, default=4.0, help="seconds between two faults")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--stand-in", action="store_true", help="an engine without a model")
    parser.add_argument("--progress", type=Path, help="keep the counts here, and go on from them")
    parser.add_argument("--record", action="store_true", help="append the rows to bench/results")
    arguments = parser.parse_args()
    kept: Path | None = arguments.progress
    tally = Tally(**json.loads(kept.read_text())) if kept is not None and kept.exists() else Tally()
    started_s, before = time.monotonic(), tally.jobs

    def keep() -> None:
        if kept is not None and tally.jobs % KEEP_EVERY == 0:
            kept.write_text(json.dumps(asdict(tally)))

    asyncio.run(
        run(
            arguments.jobs,
            at_once=arguments.at_once,
            every_s=arguments.every_s,
            seed=arguments.seed + before,
            tally=tally,
            stand_in=arguments.stand_in,
            on_progress=keep,
        )
    )
    took_s = time.monotonic() - started_s
    print(
        f"{tally.jobs} jobs, {tally.jobs - before} of them in {took_s:.0f} s, {sum(tally.faults.values())} "
        f"faults {tally.faults}: {tally.lost} lost {tally.failures}, {tally.doubled} doubled, "
        f"{tally.changed_streams} changed; {tally.attempts} more attempts; {len(tally.resumed_s)} answers of "
        f"killed workers, the next token after {tally.resume_p95_s:.2f} s (95 of 100)"
    )
    if arguments.record:
        name = "_stand_in" if arguments.stand_in else ""
        for case, value, unit in (
            ("chaos_jobs", tally.jobs, "jobs"),
            ("chaos_lost", tally.lost, "jobs"),
            ("chaos_doubled", tally.doubled, "jobs"),
            ("chaos_changed_streams", tally.changed_streams, "jobs"),
        ):
            floor = None if case == "chaos_jobs" else 0.0
            record(f"{case}{name}", value, unit, floor, (value, value), file="chaos")
        spread = (min(tally.resumed_s, default=0.0), max(tally.resumed_s, default=0.0))
        record(f"resume_p95_s{name}", tally.resume_p95_s, "s", None, spread, file="chaos")
    if tally.lost or tally.doubled or tally.changed_streams:
        raise SystemExit("every job must be answered once, as if nothing had happened")


if __name__ == "__main__":
    main()
