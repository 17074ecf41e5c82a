"""Content and counts in accounts of their own: nothing but usage records passes from one to the other."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
import pytest_asyncio

from sparkle.errors import TopologyMissing
from sparkle.queue.api import ask
from sparkle.queue.connection import Connection, ConnectionSettings, Envelope
from sparkle.queue.local import LocalServer, LocalServerSettings
from sparkle.queue.stored import StoreOutcome
from sparkle.schemas import subjects
from sparkle.schemas.ids import new_job_id

JOB = new_job_id()
RECORD = subjects.usage("local", "acme", JOB)
USAGE = {"name": "USAGE", "subjects": ["usage.*.*.*"], "storage": "file", "max_msgs_per_subject": 1}
NO_FILES, NO_MEMORY = 10047, 10028


@pytest_asyncio.fixture
async def meter(nats_server: LocalServer) -> AsyncGenerator[Connection]:
    """Whoever counts."""
    opened = await Connection.open(ConnectionSettings(url=nats_server.meter_url, request_timeout_s=0.5))
    yield opened
    await opened.close()


async def test_a_usage_record_is_stored_on_the_other_side_and_its_sender_hears_so(
    connection: Connection, meter: Connection
) -> None:
    with pytest.raises(TopologyMissing):
        await connection.publish_stored(RECORD, b"nobody keeps it", headers={})
    assert not (await ask(meter, "STREAM.CREATE.USAGE", USAGE)).code
    stored = await connection.publish_stored(RECORD, b"counts", headers={"Nats-Expected-Stream": "USAGE"})
    assert stored is StoreOutcome.STORED
    kept = await ask(meter, "STREAM.MSG.GET.USAGE", {"last_by_subj": RECORD})
    assert kept.table("message")["data"] == "Y291bnRz"


async def test_nothing_else_passes_and_nothing_comes_back(connection: Connection, meter: Connection) -> None:
    heard: dict[str, set[bytes]] = {"content": set(), "counts": set()}
    names = {id(connection): "content", id(meter): "counts"}
    for one in (connection, meter):

        async def hear(envelope: Envelope, here: str = names[id(one)]) -> None:
            heard[here].add(envelope.payload)

        await one.subscribe(">", hear)
        assert await one.echo(5.0)
    for subject in (
        "jobs.local.p0.acme.x",
        subjects.reply("acme", JOB),
        subjects.result("acme", JOB),
        subjects.cancel("acme", JOB),
        "$JS.API.INFO",
        "_INBOX.x",
    ):
        await connection.publish(subject, b"content")
        await meter.publish(subject, b"counts")
    await meter.publish(RECORD, b"counts")
    assert await connection.echo(5.0)
    assert await meter.echo(5.0)
    # a subscription to everything also hears echoes, bells and acknowledgements, all of one's own account
    assert (b"content" in heard["content"], b"counts" in heard["content"]) == (True, False)
    assert (b"counts" in heard["counts"], b"content" in heard["counts"]) == (True, False)


async def test_each_account_stores_only_where_it_may(connection: Connection, meter: Connection) -> None:
    on_disk = await ask(connection, "STREAM.CREATE.X", {"name": "X", "subjects": ["x"], "storage": "file"})
    in_memory = await ask(meter, "STREAM.CREATE.X", {"name": "X", "subjects": ["x"], "storage": "memory"})
    assert (on_disk.code, in_memory.code) == (NO_FILES, NO_MEMORY)


async def test_counts_outlive_a_server_with_a_folder_that_is_kept(nats_binary: None, tmp_path: Path) -> None:
    async with LocalServer(LocalServerSettings(folder=tmp_path)) as server:
        meter = await Connection.open(ConnectionSettings(url=server.meter_url))
        await ask(meter, "STREAM.CREATE.USAGE", USAGE)
        await meter.publish_stored(RECORD, b"counts", headers={})
        await meter.close()
        await server.kill()
        await server.start()
        meter = await Connection.open(ConnectionSettings(url=server.meter_url))
        kept = await ask(meter, "STREAM.MSG.GET.USAGE", {"last_by_subj": RECORD})
        assert kept.table("message")["data"] == "Y291bnRz"
        await meter.close()
