"""Streams and consumers are declared on a real server: once, again, and where it cannot be."""

from __future__ import annotations

import pytest

from sparkle.errors import ConfigError, NotConnected, TopologyMissing
from sparkle.queue import topology
from sparkle.queue.api import ask
from sparkle.queue.connection import Connection, ConnectionSettings
from sparkle.queue.local import LocalServer
from sparkle.queue.outgoing import JobPublisher
from sparkle.queue.topology import Outcome, TopologySettings
from sparkle.schemas.job import Job
from sparkle.schemas.priority import PriorityClass

STREAMS = ["JOBS", "RESULTS", "CONTROL", "ANSWERED"]


def consumers(region: str) -> list[str]:
    return [f"{region}-p{number}" for number in range(5)]


async def test_applying_again_changes_nothing(nats_server: LocalServer) -> None:
    connection = await Connection.open(ConnectionSettings(url=nats_server.url))
    settings = TopologySettings(regions="eu")
    first = await topology.apply(connection, settings)
    second = await topology.apply(connection, settings)
    assert [change.name for change in first] == STREAMS + consumers("eu")
    assert {change.outcome for change in first} == {Outcome.CREATED}
    assert {change.outcome for change in second} == {Outcome.UNCHANGED}
    await connection.close()


async def test_a_region_is_added_and_none_is_lost(connection: Connection) -> None:
    changes = await topology.apply(connection, TopologySettings(regions="eu"))
    outcomes = {change.name: change.outcome for change in changes}
    assert outcomes["JOBS"] is Outcome.UPDATED
    assert {outcomes[name] for name in consumers("eu")} == {Outcome.CREATED}
    assert {outcomes[name] for name in consumers("local")} == {Outcome.UNCHANGED}
    shown = await topology.show(connection)
    assert [consumer.name for consumer in shown.consumers] == consumers("local") + consumers("eu")


async def test_a_changed_setting_is_updated_in_place(connection: Connection) -> None:
    job = Job(prompt="x", tenant="acme", region="local")
    await JobPublisher(connection).publish(job, PriorityClass.P2, publication=1)
    settings = TopologySettings(regions="local", ack_wait_s=2.0, jobs_max_count=50)
    outcomes = {change.name: change.outcome for change in await topology.apply(connection, settings)}
    assert outcomes["JOBS"] is Outcome.UPDATED
    assert outcomes["RESULTS"] is Outcome.UNCHANGED
    assert {outcomes[name] for name in consumers("local")} == {Outcome.UPDATED}
    shown = await topology.show(connection)
    assert shown.streams[0].messages == 1


async def test_what_jetstream_cannot_change_is_refused_by_name(nats_server: LocalServer) -> None:
    connection = await Connection.open(ConnectionSettings(url=nats_server.url))
    other = {"name": "JOBS", "subjects": ["jobs.eu.p0.*.*"], "storage": "memory", "retention": "limits"}
    created = await ask(connection, "STREAM.CREATE.JOBS", other)
    assert created.code == 0
    with pytest.raises(ConfigError, match=r"stream JOBS: JetStream refused it .*retention"):
        await topology.apply(connection, TopologySettings(regions="eu"))
    await connection.close()


async def test_three_copies_need_three_servers(connection: Connection) -> None:
    with pytest.raises(ConfigError, match="replicas > 1 not supported in non-clustered mode"):
        await topology.apply(connection, TopologySettings(regions="local", replicas=3))


async def test_nothing_declared_is_said_so(nats_server: LocalServer) -> None:
    connection = await Connection.open(ConnectionSettings(url=nats_server.url))
    with pytest.raises(TopologyMissing, match="stream JOBS is not declared"):
        await topology.show(connection)
    await connection.close()


async def test_the_server_refuses_a_stream_on_disk(connection: Connection) -> None:
    answer = await ask(
        connection, "STREAM.CREATE.DISK", {"name": "DISK", "subjects": ["disk"], "storage": "file"}
    )
    assert answer.code == 10047


async def test_a_call_nobody_answers_is_not_connected(connection: Connection) -> None:
    with pytest.raises(NotConnected):
        await ask(connection, "NO.SUCH.CALL", timeout_s=0.05)
