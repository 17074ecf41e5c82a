"""Keys, allowance and usage on a real server: several gateways, one account, servers that come and go."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import random
from collections.abc import AsyncGenerator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio
from rich.console import Console

from sparkle.errors import (
    AllowanceSpent,
    ConfigError,
    InvalidMessage,
    KeyRefused,
    QueueError,
    RateLimited,
    TopologyMissing,
)
from sparkle.producers.metering.account import Account, MonthUsage
from sparkle.producers.metering.accounts import AccountFile
from sparkle.producers.metering.administering import Administration
from sparkle.producers.metering.metering import Metering, Reserved, open_metering
from sparkle.producers.metering.settings import MeteringSettings
from sparkle.producers.metering.tenant import Limits, Tenant
from sparkle.producers.metering.tenant_book import TenantBook
from sparkle.producers.metering.tenant_changes import TenantChanges
from sparkle.producers.metering.usage_rows import Form
from sparkle.queue import usage_streams
from sparkle.queue.connection import Connection, ConnectionSettings
from sparkle.queue.key_values import KeyValues
from sparkle.queue.local import LocalServer, LocalServerSettings
from sparkle.queue.usage import store_usage
from sparkle.queue.usage_streams import BUCKET, UsageSettings
from sparkle.schemas.codec import encode
from tests.conftest import Eventually
from tests.metering_rig import NOVEMBER_MS, HandClock, job_id, usage_record
from tests.worker_at_work import Producer, at_work, make_job

QUICK = MeteringSettings(settle_s=0.02, count_s=0.05)


@pytest_asyncio.fixture
async def meter(nats_server: LocalServer) -> AsyncGenerator[Connection]:
    """A connection to the metering account, where its streams are declared."""
    async with meter_at(nats_server) as opened:
        await usage_streams.declare(opened, UsageSettings())
        yield opened


@asynccontextmanager
async def meter_at(server: LocalServer) -> AsyncGenerator[Connection]:
    opened = await Connection.open(ConnectionSettings(url=server.meter_url, name="meter"))
    try:
        yield opened
    finally:
        await opened.close()


def book(meter: Connection) -> TenantBook:
    return TenantBook(KeyValues(meter, BUCKET))


def account_file(meter: Connection, tenant: str = "acme") -> AccountFile:
    return AccountFile(meter, KeyValues(meter, BUCKET), tenant)


async def add(meter: Connection, name: str = "acme", **fields: object) -> str:
    tenant = Tenant.model_validate({"name": name, "region": "local", **fields})
    return await book(meter).add(tenant, now_ms=NOVEMBER_MS)


async def test_a_key_says_who_asks_and_changes_count_at_every_gateway(
    meter: Connection, eventually: Eventually
) -> None:
    key = await add(meter, models=("sparkle-tiny",))
    async with open_metering(meter, QUICK) as one, open_metering(meter, QUICK) as two:
        principal = await one.authenticate(key)
        assert (principal.tenant, principal.region, principal.models) == ("acme", "local", ("sparkle-tiny",))
        new = await book(meter).rotate("acme", now_ms=NOVEMBER_MS, old_end_ms=0)
        await eventually(lambda: is_refused(one, key) and is_refused(two, key))
        for gateway in (one, two):
            assert (await gateway.authenticate(new)).tenant == "acme"
        later = await add(meter, "later")
        await eventually(lambda: not is_refused(two, later))


def is_refused(gateway: Metering, key: str) -> bool:
    try:
        gateway.directory.of_key(key)
    except KeyRefused:
        return True
    return False


async def test_tenants_are_added_once_and_changed_one_write_after_the_other(meter: Connection) -> None:
    await add(meter)
    with pytest.raises(ConfigError, match="acme is there already"):
        await add(meter)
    with pytest.raises(ConfigError, match="there is no tenant other"):
        await book(meter).get("other")

    def more(tenant: Tenant) -> Tenant:
        return tenant.model_copy(update={"allowance_tokens": (tenant.allowance_tokens or 0) + 1})

    await asyncio.gather(*(book(meter).change("acme", more) for _ in range(8)))
    assert (await book(meter).get("acme")).allowance_tokens == 8


async def test_old_keys_end_when_said_and_too_many_are_refused(meter: Connection) -> None:
    await add(meter)
    for _ in range(15):
        await book(meter).rotate("acme", now_ms=NOVEMBER_MS, old_end_ms=NOVEMBER_MS + 1_000)
    with pytest.raises(ConfigError, match="at most 16 fit"):
        await book(meter).rotate("acme", now_ms=NOVEMBER_MS, old_end_ms=NOVEMBER_MS + 9_000)
    await book(meter).rotate("acme", now_ms=NOVEMBER_MS + 1_000, old_end_ms=NOVEMBER_MS + 9_000)
    kept = (await book(meter).get("acme")).keys
    # only the last one was without an end until now
    assert [key.ends_ms for key in kept] == [NOVEMBER_MS + 9_000, None]


@pytest.mark.parametrize("seed", range(3))
async def test_two_gateways_under_load_are_never_more_than_one_job_over(
    nats_server: LocalServer, connection: Connection, meter: Connection, seed: int
) -> None:
    """Jobs come at two gateways at once, use what they like, and are recorded twice as likely as not."""
    allowance, most, chance = 5_000, 100, random.Random(seed)
    key = await add(meter, allowance_tokens=allowance)
    used = list[int]()

    async def ask(gateway: Metering, number: int) -> None:
        principal = await gateway.authenticate(key)
        job, uses = job_id(number), chance.randint(0, most)
        while True:
            await asyncio.sleep(chance.random() * 0.5)
            try:
                reserved = await gateway.reserve(principal, {job: most})
                break
            except RateLimited:
                continue
            except AllowanceSpent:
                return
        used.append(uses)
        await asyncio.sleep(chance.random() * 0.02)
        record = usage_record(job, uses // 2, uses - uses // 2, finished_ms=int(hand.unix_s * 1000))
        for _ in range(chance.randint(1, 2)):
            await store_usage(connection, record)
        await reserved.ended(job, accepted=True)

    hand = HandClock()
    other = await Connection.open(ConnectionSettings(url=nats_server.meter_url))
    async with open_metering(meter, QUICK, hand.clock) as one, open_metering(other, QUICK, hand.clock) as two:
        await asyncio.gather(*(ask((one, two)[number % 2], number) for number in range(400)))
        for gateway in (one, two):
            await gateway.settle()
    await other.close()
    assert allowance <= sum(used) <= allowance + most
    account = await account_file(meter).count()
    assert account.months["2026-11"].tokens == sum(used)
    assert account.months["2026-11"].jobs == len(used)


async def test_over_the_allowance_the_day_is_told_and_the_next_month_begins_anew(
    connection: Connection, meter: Connection
) -> None:
    key, hand = await add(meter, allowance_tokens=100), HandClock()
    async with open_metering(meter, MeteringSettings(settle_s=1000.0), hand.clock) as gateway:
        principal = await gateway.authenticate(key)
        await store_usage(connection, usage_record(job_id(1), 60, 60))
        with pytest.raises(AllowanceSpent, match="2026-12-01") as no:
            await gateway.reserve(principal, {job_id(2): 1})
        assert no.value.resets_ms == NOVEMBER_MS + 3_600_000
        hand.unix_s += 3_600.0
        await gateway.reserve(principal, {job_id(2): 1})


async def test_limits_are_the_gateways_own_and_a_refused_allowance_costs_none_of_them(
    connection: Connection, meter: Connection
) -> None:
    limits = Limits(requests_per_minute=2, tokens_per_minute=1000, max_running=1)
    key, hand = await add(meter, allowance_tokens=100, limits=limits), HandClock()
    async with open_metering(meter, MeteringSettings(settle_s=1000.0), hand.clock) as gateway:
        principal = await gateway.authenticate(key)
        first = await gateway.reserve(principal, {job_id(1): 1000})
        with pytest.raises(RateLimited, match="1 jobs are running and at most 1 may"):
            await gateway.reserve(principal, {job_id(2): 1})
        await store_usage(connection, usage_record(job_id(1), 30))
        await first.ended(job_id(1), accepted=True)
        # the tokens that the job did not use are free once its record is in
        with pytest.raises(RateLimited, match="tokens"):
            await gateway.reserve(principal, {job_id(2): 900})
        await gateway.settle()
        second = await gateway.reserve(principal, {job_id(2): 900})
        await second.ended(job_id(2), accepted=False)
        with pytest.raises(RateLimited, match="requests"):
            await gateway.reserve(principal, {job_id(3): 1})


async def test_jobs_whose_tokens_are_being_set_aside_run_already(meter: Connection) -> None:
    key = await add(meter, allowance_tokens=10_000, limits=Limits(max_running=2))
    async with open_metering(meter, MeteringSettings(settle_s=1000.0)) as gateway:
        principal = await gateway.authenticate(key)
        # all of them ask before the account was looked at
        asked = [gateway.reserve(principal, {job_id(number): 10}) for number in range(5)]
        outcomes = await asyncio.gather(*asked, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [Reserved] * 2 + [RateLimited] * 3
        # those that began are counted once
        first = outcomes[0]
        assert isinstance(first, Reserved)
        await first.ended(job_id(0), accepted=True)
        await gateway.reserve(principal, {job_id(5): 10})
        with pytest.raises(RateLimited, match="2 jobs are running and at most 2 may"):
            await gateway.reserve(principal, {job_id(6): 10})


async def test_everything_is_counted_after_the_server_and_its_memory_were_gone(tmp_path: Path) -> None:
    """What METER holds is in files; the streams of content are not."""
    server = LocalServer(LocalServerSettings(folder=tmp_path))
    async with server, meter_at(server) as meter:
        await usage_streams.declare(meter, UsageSettings())
        key = await add(meter, allowance_tokens=100)
        async with open_metering(meter, QUICK) as gateway:
            principal = await gateway.authenticate(key)
            await gateway.reserve(principal, {job_id(1): 90})
            content = await Connection.open(ConnectionSettings(url=server.url))
            await store_usage(content, usage_record(job_id(1), 40, 40))
            await server.kill()
            await server.start()
            await store_usage(content, usage_record(job_id(1), 40, 40))
            await store_usage(content, usage_record(job_id(2), 5, 5))
            await content.close()
            account = await account_file(meter).count()
            assert account.months["2026-11"] == MonthUsage(jobs=2, prompt_tokens=45, completion_tokens=45)
            assert (await gateway.authenticate(key)).tenant == "acme"


async def test_jobs_that_came_by_no_gateway_are_counted_by_any(
    connection: Connection, meter: Connection
) -> None:
    await add(meter)
    await store_usage(connection, usage_record(job_id(1), 7))
    async with open_metering(meter, QUICK):
        async with asyncio.timeout(10.0):
            while (await account_file(meter).load())[0] == Account():  # noqa: ASYNC110 - the server tells nobody
                await asyncio.sleep(0.01)
    account, _ = await account_file(meter).load()
    assert account.months == {"2026-11": MonthUsage(jobs=1, prompt_tokens=7)}


async def test_what_is_no_record_is_passed_over_and_told_without_its_bytes(
    connection: Connection, meter: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    await connection.publish("usage.local.acme.x", b"secret canary")
    stranger = usage_record(job_id(1), 5, tenant="other")
    await connection.publish(f"usage.local.acme.{job_id(2)}", encode(stranger))
    await store_usage(connection, usage_record(job_id(3), 7))
    with caplog.at_level(logging.ERROR):
        account = await account_file(meter).count()
    assert account.months == {"2026-11": MonthUsage(jobs=1, prompt_tokens=7)}
    assert [record.getMessage() for record in caplog.records] == ["usage_unreadable", "usage_misplaced"]
    assert "canary" not in caplog.text


async def test_without_the_account_nobody_is_let_in(nats_server: LocalServer, meter: Connection) -> None:
    key = await add(meter, allowance_tokens=100)
    impatient = await Connection.open(ConnectionSettings(url=nats_server.meter_url, request_timeout_s=0.1))
    async with open_metering(impatient, MeteringSettings(settle_s=1000.0)) as gateway:
        principal = await gateway.authenticate(key)
        nats_server.freeze()
        try:
            with pytest.raises(QueueError):
                await gateway.reserve(principal, {job_id(1): 10})
        finally:
            nats_server.thaw()
    await impatient.close()


@pytest.mark.parametrize("metered", [True, False])
async def test_a_workers_records_come_by_themselves(
    nats_server: LocalServer, connection: Connection, meter: Connection, metered: bool
) -> None:
    async with at_work(nats_server.url, metered=metered):
        producer = Producer(connection)
        watched = await producer.submit(make_job(max_tokens=5))
        result = await watched.result()
        await producer.until_empty()
    account = await account_file(meter).count()
    used = result.usage
    months = list(account.months.values())
    assert [(month.jobs, month.prompt_tokens, month.completion_tokens) for month in months] == [
        (1, used.prompt_tokens, used.completion_tokens)
    ]


async def test_a_metered_worker_does_not_start_where_nobody_meters(
    nats_server: LocalServer, connection: Connection
) -> None:
    async with at_work(nats_server.url, ends_with=TopologyMissing, metered=True):
        pass


async def test_an_account_of_a_newer_version_is_left_alone_and_holds_up_no_other(
    connection: Connection, meter: Connection
) -> None:
    for name in ("acme", "other"):
        await add(meter, name)
        await store_usage(connection, usage_record(job_id(1), 5, tenant=name))
    await KeyValues(meter, BUCKET).put("account.acme", b'{"through_seq": 0, "newer": 1}', revision=0)
    async with open_metering(meter, MeteringSettings(settle_s=1000.0)) as gateway:
        with pytest.raises(InvalidMessage, match=r"account\.acme: .*a newer version may have written it"):
            await gateway.count()
    account, _ = await account_file(meter, "other").load()
    assert account.months["2026-11"].jobs == 1
    await KeyValues(meter, BUCKET).put("tenant.third", b"{}", revision=0)
    with pytest.raises(InvalidMessage, match=r"tenant\.third: "):
        await book(meter).all()


async def test_a_tenant_of_a_newer_version_locks_out_no_other(
    meter: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    key = await add(meter)
    await KeyValues(meter, BUCKET).put("tenant.newer", b'{"newer": 1}', revision=0)
    async with open_metering(meter, MeteringSettings(settle_s=1000.0)) as gateway:
        await gateway.directory.load()
        assert (await gateway.authenticate(key)).tenant == "acme"
    told = [
        vars(record)["tenants"] for record in caplog.records if record.getMessage() == "tenants_unreadable"
    ]
    # once, not with every look
    assert told == [["tenant.newer"]]


def administration(server: LocalServer, hand: HandClock) -> tuple[Administration, io.StringIO, io.StringIO]:
    out, notes = io.StringIO(), io.StringIO()
    consoles = Console(file=out, width=200), Console(file=notes, width=200)
    return Administration(MeteringSettings(nats=server.meter_url), *consoles, hand.clock), out, notes


async def test_an_administrator_adds_changes_rotates_and_looks(
    nats_server: LocalServer, connection: Connection
) -> None:
    hand = HandClock()
    they, out, notes = administration(nats_server, hand)

    async def said(command: Awaitable[int]) -> str:
        assert await command == 0
        text = out.getvalue()
        out.seek(0)
        out.truncate()
        return text

    assert "USAGE            created" in await said(they.init(UsageSettings()))
    assert "KV_meter         unchanged" in await said(they.init(UsageSettings()))
    first = (await said(they.add(Tenant(name="acme", region="local", allowance_tokens=100)))).strip()
    assert first not in notes.getvalue()
    assert "shown once" in notes.getvalue()
    changed = await said(they.change("acme", TenantChanges(allowance="2000").of))
    assert "2,000" in changed
    second = (await said(they.rotate("acme", old_keys_s=60.0))).strip()
    await store_usage(connection, usage_record(job_id(1), 30, 4))
    usage = await said(they.usage([], month="2026-11", form=Form.CSV))
    assert usage.splitlines()[1] == "acme,2026-11,1,30,0,4,34,2000"
    assert await said(they.usage(["acme", "acme"], month="2026-11", form=Form.CSV)) == usage
    listed = await said(they.show(Form.JSON))
    assert [key["id"] for key in json.loads(listed)[0]["keys"]] == [first[11:23], second[11:23]]
    shown = await said(they.show(Form.TABLE)) + await said(they.usage(["acme"], month=None, form=Form.TABLE))
    assert "2026-11" in shown
    assert first[24:] not in shown + listed + changed
    with pytest.raises(ConfigError, match="there is no tenant other"):
        await they.usage(["other"], month=None, form=Form.TABLE)
    with pytest.raises(ConfigError, match="month is '2026-13'"):
        await they.usage([], month="2026-13", form=Form.TABLE)
