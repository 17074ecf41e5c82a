"""A lease on a real server: progress, redelivery, and exactly one fate."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest
import pytest_asyncio

from sparkle.errors import PublishUncertain, TopologyMissing
from sparkle.queue import topology
from sparkle.queue.api import ask
from sparkle.queue.connection import Connection, ConnectionSettings
from sparkle.queue.delivery import Delivery
from sparkle.queue.lease import Fate, Lease, LeaseSettings
from sparkle.queue.local import LocalServer
from sparkle.queue.outgoing import JobPublisher
from sparkle.queue.puller import Puller
from sparkle.queue.status import read_classes
from sparkle.queue.topology import TopologySettings
from sparkle.schemas.job import Job
from sparkle.schemas.priority import PriorityClass
from tests.conftest import Eventually

Deliveries = asyncio.Queue[Delivery]

ACK_WAIT_S = 0.4


@pytest_asyncio.fixture
async def deliveries(connection: Connection) -> AsyncGenerator[Deliveries]:
    """What a worker with room for all gets; a silent one loses its jobs after `ACK_WAIT_S`."""
    await topology.apply(connection, TopologySettings(regions="local", ack_wait_s=ACK_WAIT_S))
    queue: Deliveries = asyncio.Queue()
    puller = Puller(connection, "local", lambda: 100, queue.put)
    pulling = asyncio.create_task(puller.run())
    yield queue
    pulling.cancel()
    await asyncio.gather(pulling, return_exceptions=True)


async def publish(connection: Connection) -> str:
    job = Job(prompt="x", tenant="acme", region="local")
    await JobPublisher(connection).publish(job, PriorityClass.P0, publication=1)
    return job.id


async def running(connection: Connection) -> int:
    """Jobs in work in the class used here."""
    return (await read_classes(connection, "local"))[0].running


async def test_an_acknowledged_job_is_gone(connection: Connection, deliveries: Deliveries) -> None:
    job = await publish(connection)
    lease = Lease(connection, await deliveries.get())
    assert (lease.address.job, lease.attempt, lease.fate) == (job, 1, None)
    assert await running(connection) == 1
    assert await lease.ack()
    assert lease.fate is Fate.ACK
    assert await running(connection) == 0


async def test_a_terminated_job_is_gone(connection: Connection, deliveries: Deliveries) -> None:
    await publish(connection)
    lease = Lease(connection, await deliveries.get())
    assert await running(connection) == 1
    assert await lease.term()
    assert await running(connection) == 0


async def test_a_job_handed_back_comes_again_as_the_next_attempt(
    connection: Connection, deliveries: Deliveries
) -> None:
    await publish(connection)
    first = await deliveries.get()
    assert await Lease(connection, first).nak()
    second = await deliveries.get()
    assert (second.attempt, second.subject, second.stored_s) == (2, first.subject, first.stored_s)


async def test_a_job_handed_back_with_a_delay_comes_no_sooner(
    connection: Connection, deliveries: Deliveries
) -> None:
    await publish(connection)
    lease = Lease(connection, await deliveries.get())
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    assert await lease.nak(0.2)
    assert (await deliveries.get()).attempt == 2
    assert loop.time() - began_s >= 0.2


async def test_exactly_one_fate_wins(connection: Connection, deliveries: Deliveries) -> None:
    await publish(connection)
    lease = Lease(connection, await deliveries.get())
    won = tuple(await asyncio.gather(lease.nak(), lease.ack(), lease.term(), lease.ack()))
    assert won == (True, False, False, False)
    assert lease.fate is Fate.NAK
    assert (await deliveries.get()).attempt == 2


async def test_a_held_job_stays_and_a_left_one_comes_again(
    connection: Connection, deliveries: Deliveries
) -> None:
    """Held for three times the wait, it is not given to another; the rest is the server's own clock."""
    await publish(connection)
    lease = Lease(connection, await deliveries.get(), LeaseSettings(progress_s=ACK_WAIT_S / 5))
    again = asyncio.create_task(deliveries.get())
    async with lease.hold():
        done, _ = await asyncio.wait([again], timeout=3 * ACK_WAIT_S)
        assert not done
    # nobody chose a fate: as after a crash, another worker gets it
    assert (await again).attempt == 2


async def test_a_cancelled_body_leaves_the_job_for_redelivery(
    connection: Connection, deliveries: Deliveries
) -> None:
    await publish(connection)
    lease = Lease(connection, await deliveries.get())
    holding = asyncio.Event()

    async def work() -> None:
        async with lease.hold():
            holding.set()
            await asyncio.Event().wait()

    working = asyncio.create_task(work())
    await holding.wait()
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
    assert lease.fate is None
    assert (await deliveries.get()).attempt == 2


async def test_a_job_of_a_killed_connection_comes_again(
    nats_server: LocalServer, connection: Connection
) -> None:
    await topology.apply(connection, TopologySettings(regions="local", ack_wait_s=ACK_WAIT_S))
    dying = await Connection.open(ConnectionSettings(url=nats_server.url))
    taken: Deliveries = asyncio.Queue()
    first = asyncio.create_task(Puller(dying, "local", lambda: 1, taken.put).run())
    job = await publish(connection)
    await taken.get()
    first.cancel()
    await dying.close()

    second = asyncio.create_task(Puller(connection, "local", lambda: 1, taken.put).run())
    lease = Lease(connection, await taken.get())
    assert (lease.address.job, lease.attempt) == (job, 2)
    await lease.ack()
    second.cancel()
    await asyncio.gather(first, second, return_exceptions=True)


async def test_the_first_worker_can_still_end_a_job_that_was_given_to_another(
    connection: Connection, deliveries: Deliveries
) -> None:
    """There is no fencing: whoever stored the result may end the job."""
    await publish(connection)
    slow = Lease(connection, await deliveries.get())
    assert (await deliveries.get()).attempt == 2
    assert await slow.ack()
    assert await running(connection) == 0


async def test_an_end_that_cannot_be_confirmed_is_said_so(
    nats_server: LocalServer, connection: Connection, deliveries: Deliveries
) -> None:
    await publish(connection)
    settings = LeaseSettings(answer_timeout_s=0.1, give_up_s=0.3)
    lease = Lease(connection, await deliveries.get(), settings)
    assert (await ask(connection, "STREAM.DELETE.JOBS")).code == 0
    with pytest.raises((TopologyMissing, PublishUncertain)):
        await lease.ack()
    assert not await lease.nak()


async def test_a_lease_of_a_lost_stream_ends_no_other_job(
    nats_server: LocalServer, connection: Connection, deliveries: Deliveries, eventually: Eventually
) -> None:
    """The stream made anew counts from 1 again: the old acknowledgement would be the new job's."""
    await publish(connection)
    old = Lease(connection, await deliveries.get())
    await nats_server.kill()
    await nats_server.start()
    await eventually(lambda: connection.is_up and connection.generation == 1)
    await topology.apply(connection, TopologySettings(regions="local", ack_wait_s=60.0))
    job = await publish(connection)
    new = Lease(connection, await deliveries.get())
    assert (new.address.job, new.attempt) == (job, 1)
    for tell in (old.ack, old.nak, old.term):
        assert not await tell()
    assert await running(connection) == 1
    assert await new.ack()
    assert await running(connection) == 0


async def test_a_lease_outlives_a_reconnection_that_lost_nothing(
    connection: Connection, deliveries: Deliveries
) -> None:
    await publish(connection)
    lease = Lease(connection, await deliveries.get())
    connection.generation += 1
    assert await lease.ack()
    assert await running(connection) == 0


async def test_a_lease_speaks_by_the_delivery_it_adopted(
    nats_server: LocalServer, connection: Connection, deliveries: Deliveries, eventually: Eventually
) -> None:
    """The job was lost and published again while it ran here: its end takes the new message off the queue."""
    job = Job(prompt="x", tenant="acme", region="local")
    await JobPublisher(connection).publish(job, PriorityClass.P0, publication=1)
    lease = Lease(connection, await deliveries.get())
    await nats_server.kill()
    await nats_server.start()
    await eventually(lambda: connection.is_up and connection.generation == 1)
    await topology.apply(connection, TopologySettings(regions="local", ack_wait_s=60.0))
    await JobPublisher(connection).publish(job, PriorityClass.P0, publication=2)
    lease.adopt(await deliveries.get())
    assert await lease.ack()
    assert await running(connection) == 0
