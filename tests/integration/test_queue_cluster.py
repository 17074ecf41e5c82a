"""Three servers as one: what a stream of three copies holds outlives a node, and no more than that."""

from __future__ import annotations

import asyncio

from sparkle.queue import topology
from sparkle.queue.connection import Connection
from sparkle.queue.delivery import Delivery
from sparkle.queue.lease import Lease
from sparkle.queue.outgoing import JobPublisher, Publication, PublishSettings
from sparkle.queue.puller import Puller
from sparkle.queue.topology import TopologySettings
from sparkle.schemas.codec import decode
from sparkle.schemas.job import Job
from sparkle.schemas.priority import PriorityClass
from tests.conftest import REGION
from tests.nats_cluster import NUM_NODES, NatsCluster

# a new leader takes 6 s on a quiet machine
PATIENT = PublishSettings(answer_timeout_s=2.0, give_up_s=60.0)


def job(number: int) -> Job:
    return Job(prompt=f"number {number}", tenant="acme", region=REGION)


async def publish(connection: Connection, asked: Job) -> Publication:
    return await JobPublisher(connection, PATIENT).publish(asked, PriorityClass.P0, publication=1)


async def pull(connection: Connection, count: int) -> list[Job]:
    """The next jobs, acknowledged."""
    deliveries: asyncio.Queue[Delivery] = asyncio.Queue()
    puller = Puller(connection, REGION, lambda: 1, deliveries.put)
    pulling = asyncio.create_task(puller.run())
    jobs: list[Job] = []
    for _ in range(count):
        lease = Lease(connection, await deliveries.get())
        jobs.append(decode(lease.payload, Job))
        assert await lease.ack()
    puller.stop()
    await pulling
    return jobs


async def test_jobs_outlive_the_leader_which_knows_them_when_it_comes_back(
    nats_cluster: NatsCluster,
) -> None:
    connection = await nats_cluster.connect()
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
    assert await pull(connection, 4) == asked
    await connection.close()


async def test_with_all_nodes_every_message_is_gone_and_nothing_that_was_declared(
    nats_cluster: NatsCluster,
) -> None:
    before = await nats_cluster.connect()
    await publish(before, job(1))
    declared = await topology.show(before)
    assert {stream.replicas for stream in declared.streams} == {NUM_NODES}
    assert [stream.messages for stream in declared.streams] == [1, 0, 0, 0]
    await before.close()
    await nats_cluster.kill_all()
    await nats_cluster.start_all()
    await nats_cluster.until_whole()
    connection = await nats_cluster.connect()
    after = await topology.show(connection)
    assert [stream.name for stream in after.streams] == [stream.name for stream in declared.streams]
    assert [stream.messages for stream in after.streams] == [0, 0, 0, 0]
    assert after.consumers == tuple(
        type(consumer)(consumer.name, waiting=0, running=0, pulls=0) for consumer in declared.consumers
    )
    changes = await topology.apply(connection, TopologySettings(regions=REGION, replicas=NUM_NODES))
    assert {change.outcome for change in changes} == {topology.Outcome.UNCHANGED}
    await connection.close()
