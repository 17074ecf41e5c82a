"""One allowance at two gateways in a cluster whose leaders are killed: no job is lost, one over at most."""

from __future__ import annotations

import asyncio
import random

import pytest

from sparkle.errors import AllowanceSpent, QueueError, RateLimited
from sparkle.producers.metering.accounts import AccountFile
from sparkle.producers.metering.metering import Metering, open_metering
from sparkle.producers.metering.settings import MeteringSettings
from sparkle.producers.metering.tenant import Tenant
from sparkle.producers.metering.tenant_book import TenantBook
from sparkle.queue import usage_streams
from sparkle.queue.api import ask
from sparkle.queue.connection import Connection, ConnectionSettings
from sparkle.queue.key_values import KeyValues
from sparkle.queue.persist import persist
from sparkle.queue.usage import store_usage
from sparkle.queue.usage_streams import BUCKET, UsageSettings
from tests.metering_rig import HandClock, job_id, usage_record
from tests.nats_cluster import NatsCluster

pytestmark = pytest.mark.acceptance

ALLOWANCE, MOST = 60_000, 100
JOBS_AT_ONCE = 24


class Spending:
    """Jobs of one tenant at several gateways, until the allowance is spent."""

    def __init__(self, workers: Connection, hand: HandClock) -> None:
        self._workers = workers
        self._hand = hand
        self._chance = random.Random(7)
        self._count = 0
        self.used: list[int] = []

    async def run(self, gateway: Metering, key: str) -> None:
        """One job after the other."""
        while True:
            self._count += 1
            job, uses = job_id(self._count), self._chance.randint(0, MOST)
            try:
                reserved = await gateway.reserve(await gateway.authenticate(key), {job: MOST})
            except (RateLimited, QueueError):
                await asyncio.sleep(0.02)
                continue
            except AllowanceSpent:
                return
            self.used.append(uses)
            await asyncio.sleep(self._chance.random() * 0.05)
            # as a metered worker: until it is stored, and now and then once more
            record = usage_record(job, uses, finished_ms=int(self._hand.unix_s * 1000))
            for _ in range(self._chance.randint(1, 2)):
                await persist(store_usage, self._workers, record)
            await reserved.ended(job, accepted=True)


async def test_leaders_die_and_one_allowance_is_counted_right(nats_cluster: NatsCluster) -> None:
    meter_url = nats_cluster.url.replace("nats://", "nats://meter:meter@")

    async def connect() -> Connection:
        settings = ConnectionSettings(url=meter_url, name="meter", request_timeout_s=1.0)
        return await Connection.open(settings)

    operator, one, two = [await connect() for _ in range(3)]
    workers = await nats_cluster.connect()
    await usage_streams.declare(operator, UsageSettings(replicas=3))
    values = KeyValues(operator, BUCKET)
    key = await TenantBook(values).add(
        Tenant(name="acme", region="local", allowance_tokens=ALLOWANCE), now_ms=0
    )
    hand = HandClock()
    spending, settings = Spending(workers, hand), MeteringSettings(settle_s=0.05)
    async with (
        open_metering(one, settings, hand.clock) as first,
        open_metering(two, settings, hand.clock) as second,
    ):
        jobs = [
            asyncio.create_task(spending.run((first, second)[number % 2], key))
            for number in range(JOBS_AT_ONCE)
        ]
        while len(spending.used) < 2 * JOBS_AT_ONCE:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)
        # where the account is, and then whichever leads the records
        for stream in ("KV_meter", "USAGE"):
            info = await persist(ask, operator, f"STREAM.INFO.{stream}")
            leader = str(info.table("cluster").get("leader"))
            node = next(one for one in nats_cluster.nodes if one.name == leader)
            await node.kill()
            enough = len(spending.used) + JOBS_AT_ONCE
            async with asyncio.timeout(60.0):
                while len(spending.used) < enough and not jobs[0].done():  # noqa: ASYNC110 - nobody tells
                    await asyncio.sleep(0.01)
            await node.start()
            await nats_cluster.start_all()
        await asyncio.gather(*jobs)
    account = await persist(AccountFile(operator, values, "acme").count)
    assert ALLOWANCE <= sum(spending.used) <= ALLOWANCE + MOST
    assert account.months["2026-11"].tokens == sum(spending.used)
    assert account.months["2026-11"].jobs == len(spending.used)
    for connection in (operator, one, two, workers):
        await connection.close()
