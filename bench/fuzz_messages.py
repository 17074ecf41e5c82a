"""Hostile messages of every kind, by the million, to a worker and a client: who ends, who waits, what grows.

Each wave is ended by a sound job that must be answered; each job id that a message came under must get one
end. With --sealed jobs and answers are sealed, many of them wrongly, and none of those may be believed. The
engine is a stand-in; what reads messages is not. Run from the repository's root:
python -m bench.fuzz_messages --messages 1000000 [--sealed]
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import time
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil  # type: ignore[import-untyped]  # it has no types of its own

from bench.record import record
from sparkle.queue import topology
from sparkle.queue.connection import Connection, ConnectionSettings
from sparkle.queue.local import LocalServer
from sparkle.queue.topology import TopologySettings
from tests.hostile_messages import CANARY
from tests.hostile_seals import HostileSeals, hostile_seals
from tests.hostile_traffic import WORKER, HostileTraffic
from tests.worker_at_work import REGION
from tests.worker_processes import WorkerProcess, stand_in, worker_process

MIB = 1024 * 1024
WAVE = 2_000
WARM_SHARE = 0.2
"""By then caches, kept chunks and heaps have their size."""


def memory_mib(worker: WorkerProcess) -> float:
    """What worker and engine hold."""
    process = psutil.Process(worker.process.pid)
    return sum(int(one.memory_info().rss) for one in (process, *process.children())) / MIB


class Growth:
    """Memory after each wave."""

    def __init__(self) -> None:
        self.after_mib: list[float] = []

    @property
    def since_warm_mib(self) -> float:
        """How much more it was at the end than once warm."""
        warm = self.after_mib[int(len(self.after_mib) * WARM_SHARE) :]
        return warm[-1] - warm[0]


async def run(messages: int, seed: int, *, sealed: bool) -> tuple[HostileTraffic, Growth]:
    """Send them all. Raises TimeoutError where a job gets no end, AssertionError where the worker ended."""
    growth = Growth()
    flags = ["--name", WORKER, "--slots", "32"]
    seals: HostileSeals | None = None
    async with LocalServer() as server, AsyncExitStack() as stack:
        if sealed:
            folder = stack.enter_context(TemporaryDirectory())
            seals, keys = hostile_seals(Path(folder), seed=seed)
            flags += ["--keys-file", str(keys)]
        connection = await Connection.open(ConnectionSettings(url=server.url, name="fuzz"))
        await topology.apply(connection, TopologySettings(regions=REGION, results_max_age_s=30.0))
        async with worker_process(*stand_in(server, *flags)) as worker:
            traffic = HostileTraffic(connection, seed, seals)
            await traffic.start()
            started_s = time.monotonic()
            while (sent := sum(traffic.sent.values())) < messages:
                await traffic.wave(min(WAVE, messages - sent))
                assert worker.process.returncode is None, "the worker has ended"
                growth.after_mib.append(memory_mib(worker))
                leaks = [line for line in worker.lines if CANARY in line or "Traceback" in line]
                traffic.told += leaks
                worker.lines.clear()
                if len(growth.after_mib) % 10 == 0:
                    took_s = time.monotonic() - started_s
                    print(f"{sent + WAVE:9,} in {took_s:6.0f} s, {growth.after_mib[-1]:.1f} MiB", flush=True)
        await connection.close()
    return traffic, growth


def main() -> None:
    """Send, print, and with --record keep rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sealed", action="store_true", help="end to end, many of them wrongly")
    parser.add_argument("--record", action="store_true", help="append rows to bench/results")
    arguments = parser.parse_args()
    # what is refused is logged at each message
    logging.disable(logging.CRITICAL)
    traffic, growth = asyncio.run(run(arguments.messages, arguments.seed, sealed=arguments.sealed))
    sent = sum(traffic.sent.values())
    bad = len(traffic.doubled) + len(traffic.told) + len(traffic.believed)
    print(f"sent {dict(traffic.sent)}\nsealed {dict(traffic.sealed)}\nends {dict(traffic.ends)}")
    print(f"doubled {len(traffic.doubled)}, told {traffic.told[:3]}, believed {traffic.believed[:3]}")
    print(f"grown {growth.since_warm_mib:.1f} MiB")
    if arguments.record:
        name = "fuzz_sealed" if arguments.sealed else "fuzz"
        record(f"{name}_messages", sent, "messages", None, (sent, sent), file="kept")
        record(f"{name}_crashes", bad, "crashes, doubled ends, leaks", 0.0, (bad, bad), file="kept")
        grown, most = growth.since_warm_mib, max(growth.after_mib) - min(growth.after_mib)
        record(f"{name}_memory_growth_mib", grown, "MiB", 0.0, (min(0.0, grown), most), file="kept")


if __name__ == "__main__":
    main()
