"""What keys and allowances cost: room for a job while there is plenty and where there is little, counting.

Run from the repository's root: python -m bench.metering
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import statistics
import time
from collections.abc import AsyncGenerator

from bench.record import record
from sparkle.producers.gateway.access import Principal
from sparkle.producers.metering.accounts import AccountFile
from sparkle.producers.metering.metering import Metering, open_metering
from sparkle.producers.metering.settings import MeteringSettings
from sparkle.producers.metering.tenant import Tenant
from sparkle.producers.metering.tenant_book import TenantBook
from sparkle.queue import usage_streams
from sparkle.queue.connection import Connection, ConnectionSettings
from sparkle.queue.key_values import KeyValues
from sparkle.queue.local import LocalServer
from sparkle.queue.usage import send_usage, store_usage
from sparkle.queue.usage_streams import BUCKET, UsageSettings
from sparkle.schemas.answer import FinishReason
from sparkle.schemas.control import UsageRecord
from sparkle.schemas.ids import new_job_id
from sparkle.schemas.priority import PriorityClass

ROUNDS = 9
MOST_TOKENS = 1000
NOTHING_BY_ITSELF = MeteringSettings(settle_s=1000.0, count_s=1000.0)


def usage_record(tenant: str, job: str) -> UsageRecord:
    """A record of one token."""
    return UsageRecord(
        job=job,
        tenant=tenant,
        region="local",
        worker="w1",
        attempt=1,
        priority=PriorityClass.P0,
        outcome=FinishReason.STOP,
        prompt_tokens=1,
        cached_tokens=0,
        completion_tokens=0,
        drafted_tokens=0,
        accepted_tokens=0,
        queue_s=0.0,
        total_s=1.0,
        finished_ms=int(time.time() * 1000),
    )


class Bench:
    """One gateway's metering and its tenants."""

    def __init__(self, gateway: Metering, meter: Connection, content: Connection) -> None:
        self._gateway = gateway
        self._meter = meter
        self._content = content

    async def admit_ms(self, tenant: str, count: int) -> list[float]:
        """Milliseconds that each of so many jobs in turn waits for its room; none is given back."""
        principal, took = Principal(tenant, "local"), list[float]()
        for _ in range(count):
            job = new_job_id()
            began_s = time.perf_counter()
            await self._gateway.reserve(principal, {job: MOST_TOKENS})
            took.append((time.perf_counter() - began_s) * 1000)
        return took

    async def store_ms(self, tenant: str, count: int) -> list[float]:
        """Milliseconds that a metered worker waits for a record to be stored."""
        took = list[float]()
        for _ in range(count):
            began_s = time.perf_counter()
            await store_usage(self._content, usage_record(tenant, new_job_id()))
            took.append((time.perf_counter() - began_s) * 1000)
        return took

    async def counted_per_s(self, tenant: str, count: int) -> float:
        """Records that are counted in a second."""
        for _ in range(count):
            await send_usage(self._content, usage_record(tenant, new_job_id()))
        await store_usage(self._content, usage_record(tenant, new_job_id()))
        file = AccountFile(self._meter, KeyValues(self._meter, BUCKET), tenant)
        began_s = time.perf_counter()
        account = await file.count()
        took_s = time.perf_counter() - began_s
        assert sum(month.jobs for month in account.months.values()) == count + 1
        return count / took_s


@contextlib.asynccontextmanager
async def bench(tenants: dict[str, int | None]) -> AsyncGenerator[Bench]:
    """A server, a gateway's metering, and tenants with these allowances."""
    async with LocalServer() as server:
        meter = await Connection.open(ConnectionSettings(url=server.meter_url, name="bench"))
        content = await Connection.open(ConnectionSettings(url=server.url, name="bench"))
        await usage_streams.declare(meter, UsageSettings())
        book = TenantBook(KeyValues(meter, BUCKET))
        for name, allowance in tenants.items():
            await book.add(Tenant(name=name, region="local", allowance_tokens=allowance), now_ms=0)
        async with open_metering(meter, NOTHING_BY_ITSELF) as gateway:
            yield Bench(gateway, meter, content)
        await content.close()
        await meter.close()


async def measure(keep: bool, jobs: int, records: int) -> None:
    """Print the figures; with `keep` append rows."""
    # of little, less than a sixteenth of which is one job: each job is a write
    little = {f"little-{number}": 15 * MOST_TOKENS for number in range(ROUNDS)}
    plenty = {f"plenty-{number}": 10**12 for number in range(ROUNDS)}
    counted = {f"counted-{number}": None for number in range(ROUNDS)}
    async with bench({**little, **plenty, **counted}) as there:
        rows = {
            # the first one asks the account
            "metering_admit_plenty_ms": [
                statistics.median((await there.admit_ms(name, jobs))[1:]) for name in plenty
            ],
            "metering_admit_little_ms": [
                statistics.median((await there.admit_ms(name, 14))[1:]) for name in little
            ],
            "metering_store_ms": [statistics.median(await there.store_ms("any", 200)) for _ in range(ROUNDS)],
            "metering_counted_per_s": [await there.counted_per_s(name, records) for name in counted],
        }
    for name, values in rows.items():
        value, spread = statistics.median(values), (min(values), max(values))
        print(f"{name}: {value:.4g}, {spread[0]:.4g} to {spread[1]:.4g}")
        if keep:
            unit = "records/s" if name.endswith("per_s") else "ms"
            record(name, value, unit, None, spread, file="metering")


def main() -> None:
    """Measure and print; with --record keep rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", action="store_true", help="append rows to bench/results")
    parser.add_argument("--jobs", type=int, default=1000, help="jobs a round while there is plenty")
    parser.add_argument("--records", type=int, default=5000, help="records a round to count")
    arguments = parser.parse_args()
    asyncio.run(measure(arguments.record, arguments.jobs, arguments.records))


if __name__ == "__main__":
    main()
