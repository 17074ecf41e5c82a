"""Three servers as one: what a stream of three copies holds outlives a node, and no more than that."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest
import pytest_asyncio

from sparkle.queue import topology
from sparkle.queue.api import as_count, ask
from sparkle.queue.connection import Connection, ConnectionSettings
from sparkle.queue.delivery import Delivery
from sparkle.queue.lease import Lease
from sparkle.queue.outgoing import JobPublisher, Publication, PublishSettings
from sparkle.queue.persist import persist
from sparkle.queue.puller import Puller, PullSettings
from sparkle.queue.status import read_classes
from sparkle.queue.topology import TopologySettings
from sparkle.schemas.codec import decode
from sparkle.schemas.job import Job
from sparkle.schemas.priority import PriorityClass
from tests.conftest import REGION, Eventually
from tests.nats_cluster import NUM_NODES, NatsCluster

# a cluster takes its time, on a busy machine more of it
pytestmark = pytest.mark.timeout(300)

# a new leader takes 6 s on a quiet machine
PATIENT = PublishSettings(answer_timeout_s=2.0, give_up_s=60.0)


def job(number: int) -> Job:
    return Job(prompt=f"number {number}", tenant="acme", region=REGION)


async def publish(connection: Connection, asked: Job) -> Publication:
    return await JobPublisher(connection, PATIENT).publish(asked, PriorityClass.P0, publication=1)


async def pull(connection: Connection) -> Lease:
    """The next job, in hand."""
    deliveries: asyncio.Queue[Delivery] = asyncio.Queue()
    puller = Puller(connection, REGION, lambda: 1, deliveries.put)
    pulling = asyncio.create_task(puller.run())
    lease = Lease(connection, await deliveries.get())
    puller.stop()
    await pulling
    return lease


async def nothing_comes(_delivery: Delivery) -> None:
    pytest.fail("no job is on the queue")


@pytest_asyncio.fixture
async def connection(nats_cluster: NatsCluster) -> AsyncGenerator[Connection]:
    """A connection to whichever node is there."""
    opened = await nats_cluster.connect()
    yield opened
    await opened.close()


async def test_a_user_stays_who_he_is_when_his_node_dies(
    nats_cluster: NatsCluster, eventually: Eventually
) -> None:
    """To a node that it is told of by another one, the library goes without the user in the address."""
    first = nats_cluster.nodes[0]
    meter = await Connection.open(ConnectionSettings(url=first.url.replace("nats://", "nats://meter:meter@")))
    assert await storage_bytes(meter) > 0
    await first.kill()
    await eventually(lambda: meter.generation == 1)
    assert await storage_bytes(meter) > 0, "the account of content has none"
    await meter.close()


async def storage_bytes(connection: Connection) -> int:
    """What the account may store in files; waits for a leader."""
    settings = await persist(ask, connection, "INFO")
    return as_count(settings.table("limits").get("max_storage"))


async def test_jobs_outlive_the_leader_which_knows_them_when_it_comes_back(
    nats_cluster: NatsCluster, connection: Connection
) -> None:
    asked = [job(number) for number in range(4)]
    for each in asked[:2]:
        assert await publish(connection, each) is Publication.STORED
    lost = await nats_cluster.leader()
    await lost.kill()
    # held back until there is a new one, and known to it if it was stored before
    assert await publish(connection, asked[0]) is Publication.ALREADY_QUEUED
    for each in asked[2:]:
        assert await publish(connection, each) is Publication.STORED
    await lost.start()
    await nats_cluster.until_whole()
    # with the two others gone in turn, only the one that came back holds them all along
    for node in nats_cluster.nodes:
        if node is not lost:
            await node.stop()
            await node.start()
            await nats_cluster.until_whole()
    for each in asked:
        lease = await pull(connection)
        assert decode(lease.payload, Job) == each
        assert await lease.ack()


async def test_with_all_nodes_every_message_is_gone_and_nothing_that_was_declared(
    nats_cluster: NatsCluster, connection: Connection
) -> None:
    await publish(connection, job(1))
    held = await pull(connection)
    waiting = Puller(connection, REGION, lambda: 1, nothing_comes, PullSettings(missing_grace_s=0.1))
    outlasting = asyncio.create_task(waiting.run())
    declared = await persist(topology.show, connection)
    assert {stream.replicas for stream in declared.streams} == {NUM_NODES}
    await nats_cluster.kill_all()
    await nats_cluster.start_all()
    await nats_cluster.until_whole()
    assert not outlasting.done(), "no leader is not the same as no consumer"
    waiting.stop()
    await outlasting
    after = await persist(topology.show, connection)
    assert [stream.name for stream in after.streams] == [stream.name for stream in declared.streams]
    assert {stream.messages for stream in after.streams} == {0}
    assert [consumer.name for consumer in after.consumers] == [one.name for one in declared.consumers]
    changes = await persist(topology.apply, connection, TopologySettings(regions=REGION, replicas=NUM_NODES))
    assert {change.outcome for change in changes} == {topology.Outcome.UNCHANGED}
    # the streams count from 1 again: what was held would now speak for the next job
    await publish(connection, job(2))
    other = await pull(connection)
    assert other.delivery.ack_subject.split(".")[5] == held.delivery.ack_subject.split(".")[5]
    assert not await held.ack()
    (counts, *_) = await read_classes(connection, REGION)
    assert (counts.waiting, counts.running) == (0, 1)
    assert await other.ack()
