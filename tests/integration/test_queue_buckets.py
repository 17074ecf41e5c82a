"""Buckets and stored messages on a real server: revisions, order, what is told of a write, trouble."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest
import pytest_asyncio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sparkle.errors import ConfigError, NotConnected, PublishUncertain, TopologyMissing
from sparkle.queue import usage_streams
from sparkle.queue.api import ask
from sparkle.queue.connection import Connection, ConnectionSettings
from sparkle.queue.key_values import Entry, KeyValues
from sparkle.queue.local import LocalServer
from sparkle.queue.stored_messages import read_after
from sparkle.queue.topology import Outcome
from sparkle.queue.usage import require_meter, send_usage, store_usage
from sparkle.queue.usage_streams import BUCKET, UsageSettings
from tests.conftest import Eventually
from tests.metering_rig import job_id, usage_record


@pytest_asyncio.fixture
async def meter(nats_server: LocalServer) -> AsyncGenerator[Connection]:
    """A connection to the metering account, where its streams are declared."""
    opened = await Connection.open(ConnectionSettings(url=nats_server.meter_url, name="meter"))
    await usage_streams.declare(opened, UsageSettings())
    yield opened
    await opened.close()


async def test_declaring_again_changes_nothing_and_a_setting_is_changed_in_place(meter: Connection) -> None:
    again = await usage_streams.declare(meter, UsageSettings())
    assert [(change.name, change.outcome) for change in again] == [
        ("USAGE", Outcome.UNCHANGED),
        ("KV_meter", Outcome.UNCHANGED),
    ]
    longer = await usage_streams.declare(meter, UsageSettings(max_age_s=100.0))
    assert longer[0].outcome is Outcome.UPDATED


async def test_the_account_of_content_takes_none_of_it(connection: Connection) -> None:
    with pytest.raises(ConfigError, match="USAGE: JetStream refused it"):
        await usage_streams.declare(connection, UsageSettings())


async def test_a_write_replaces_the_revision_that_it_names_and_no_other(meter: Connection) -> None:
    values = KeyValues(meter, BUCKET)
    assert await values.get("tenant.acme") is None
    first = await values.put("tenant.acme", b"1", revision=0)
    assert first is not None
    assert await values.put("tenant.acme", b"x", revision=0) is None
    second = await values.put("tenant.acme", b"2", revision=first)
    assert second is not None
    assert await values.put("tenant.acme", b"x", revision=first) is None
    assert await values.get("tenant.acme") == Entry("tenant.acme", b"2", second)


async def test_of_many_writers_one_wins_each_round(meter: Connection) -> None:
    values = KeyValues(meter, BUCKET)
    revision = 0
    for _ in range(20):
        written = await asyncio.gather(*(values.put("account.a", b"x", revision=revision) for _ in range(8)))
        won = [one for one in written if one is not None]
        assert len(won) == 1
        revision = won[0]


async def test_only_what_was_written_is_told(meter: Connection, eventually: Eventually) -> None:
    values = KeyValues(meter, BUCKET)
    told = list[Entry]()

    async def hear(entry: Entry) -> None:
        told.append(entry)

    subscription = await values.watch("tenant.*", hear)
    first = await values.put("tenant.acme", b"1", revision=0)
    assert await values.put("tenant.acme", b"refused", revision=0) is None
    await values.put("account.acme", b"unwatched", revision=0)
    last = await values.put("tenant.other", b"2", revision=0)
    assert first is not None
    assert last is not None
    await eventually(lambda: len(told) == 2)
    assert told == [Entry("tenant.acme", b"1", first), Entry("tenant.other", b"2", last)]
    await subscription.stop()


async def test_entries_are_found_by_pattern_each_as_it_is_now(meter: Connection) -> None:
    values = KeyValues(meter, BUCKET)
    revision = await values.put("tenant.a", b"old", revision=0)
    assert revision is not None
    await values.put("tenant.b", b"b", revision=0)
    await values.put("account.a", b"no", revision=0)
    await values.put("tenant.a", b"new", revision=revision)
    assert {entry.key: entry.value for entry in await values.matching("tenant.*")} == {
        "tenant.a": b"new",
        "tenant.b": b"b",
    }


async def test_without_a_bucket_the_way_out_is_told(nats_server: LocalServer) -> None:
    opened = await Connection.open(ConnectionSettings(url=nats_server.meter_url))
    values = KeyValues(opened, BUCKET)
    for attempt in (
        values.get("tenant.a"),
        values.put("tenant.a", b"", revision=0),
        values.matching("tenant.*"),
    ):
        with pytest.raises(TopologyMissing, match="run `sparkle tenants init`"):
            await attempt
    with pytest.raises(TopologyMissing):
        await read_after(opened, "USAGE", "usage.*.acme.*", 0)
    await opened.close()


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 40), st.integers(1, 7), st.integers(0, 60))
async def test_every_message_is_read_once_in_order_whatever_the_batch(
    meter: Connection, count: int, batch: int, start: int
) -> None:
    await ask(meter, "STREAM.PURGE.USAGE")
    for number in range(count):
        tenant = "acme" if number % 3 else "other"
        await store_usage(meter, usage_record(job_id(number), number, tenant=tenant))
    everything = await read_after(meter, "USAGE", "usage.*.acme.*", 0)
    assert [message.subject.split(".")[3] for message in everything] == [
        job_id(number) for number in range(count) if number % 3
    ]
    after = everything[start].seq if start < len(everything) else 10**9
    assert await read_after(meter, "USAGE", "usage.*.acme.*", after, batch=batch) == everything[start + 1 :]


async def test_a_workers_record_is_stored_once_a_job(connection: Connection, meter: Connection) -> None:
    first = usage_record(job_id(1), 10)
    await store_usage(connection, first)
    await store_usage(connection, first.evolve(attempt=2, prompt_tokens=99))
    await send_usage(connection, first.evolve(attempt=3))
    await store_usage(connection, usage_record(job_id(2), 20))
    stored = await read_after(meter, "USAGE", "usage.*.acme.*", 0)
    assert [message.subject for message in stored] == [
        f"usage.local.acme.{job_id(1)}",
        f"usage.local.acme.{job_id(2)}",
    ]


async def test_where_nobody_meters_a_stored_record_is_missed_and_a_sent_one_is_not(
    connection: Connection,
) -> None:
    await send_usage(connection, usage_record(job_id(1), 10))
    with pytest.raises(TopologyMissing):
        await store_usage(connection, usage_record(job_id(1), 10))
    with pytest.raises(TopologyMissing, match="run `sparkle tenants init`, or leave --metered out"):
        await require_meter(connection, "local")


async def test_whether_records_are_stored_is_asked_without_storing_one(
    connection: Connection, meter: Connection
) -> None:
    await require_meter(connection, "local")
    assert await read_after(meter, "USAGE", "usage.>", 0) == []


async def test_a_server_that_freezes_is_uncertain_and_not_empty(
    nats_server: LocalServer, meter: Connection
) -> None:
    impatient = await Connection.open(ConnectionSettings(url=nats_server.meter_url, request_timeout_s=0.2))
    await store_usage(impatient, usage_record(job_id(1), 1))
    nats_server.freeze()
    try:
        with pytest.raises((PublishUncertain, NotConnected)):
            await read_after(impatient, "USAGE", "usage.*.acme.*", 0)
    finally:
        nats_server.thaw()
    assert len(await read_after(impatient, "USAGE", "usage.*.acme.*", 0)) == 1
    await impatient.close()
