"""The puller against a real server: order, credit, bells, shares, and what it does when the queue breaks."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from sparkle.errors import TopologyMissing
from sparkle.queue import topology
from sparkle.queue.api import ask
from sparkle.queue.connection import Connection, ConnectionSettings
from sparkle.queue.delivery import Delivery
from sparkle.queue.lease import Lease
from sparkle.queue.local import LocalServer
from sparkle.queue.outgoing import JobPublisher
from sparkle.queue.puller import Puller, PullSettings
from sparkle.queue.topology import TopologySettings
from sparkle.schemas import subjects
from sparkle.schemas.job import Job
from sparkle.schemas.priority import PriorityClass
from tests.conftest import Eventually

P0, P1, P2, P3, P4 = PriorityClass


class Slots:
    """A worker without an engine: takes leases into slots, and ends them when told."""

    def __init__(self, connection: Connection, slots: int, settings: PullSettings | None = None) -> None:
        self.slots = slots
        self.held: list[Lease] = []
        self.taken: list[Lease] = []
        self.most_held = 0
        self.puller = Puller(
            connection,
            "local",
            self.free,
            self._deliver,
            settings,
            on_top=lambda priority: self.on_top(priority),
        )
        self._connection = connection
        self._arrived = asyncio.Event()

    def free(self) -> int:
        return self.slots - len(self.held)

    def on_top(self, _priority: PriorityClass) -> int:
        return 0

    async def _deliver(self, delivery: Delivery) -> None:
        lease = Lease(self._connection, delivery)
        self.held.append(lease)
        self.taken.append(lease)
        self.most_held = max(self.most_held, len(self.held))
        self._arrived.set()

    async def work_off(self, jobs: int) -> None:
        """Take and finish so many jobs, one after the other."""
        for _ in range(jobs):
            async with asyncio.timeout(10.0):
                while not self.held:
                    self._arrived.clear()
                    await self._arrived.wait()
            await self.finish_one()

    async def finish_one(self) -> None:
        await self.held[0].ack()
        del self.held[0]
        self.puller.wake()

    @property
    def classes(self) -> list[PriorityClass]:
        return [lease.address.priority for lease in self.taken]

    @property
    def jobs(self) -> list[str]:
        return [lease.address.job for lease in self.taken]


@asynccontextmanager
async def pulling(slots: Slots) -> AsyncGenerator[asyncio.Task[None]]:
    task = asyncio.create_task(slots.puller.run())
    try:
        yield task
    finally:
        slots.puller.stop()
        await asyncio.gather(task, return_exceptions=True)


async def publish(connection: Connection, *classes: PriorityClass) -> list[str]:
    publisher = JobPublisher(connection)
    jobs = [Job(prompt="x", tenant="acme", region="local") for _ in classes]
    for job, priority in zip(jobs, classes, strict=True):
        await publisher.publish(job, priority, publication=1)
    return [job.id for job in jobs]


async def test_shorter_classes_go_first_and_each_class_in_its_order(
    connection: Connection, eventually: Eventually
) -> None:
    p4, p0_first, p2, p0_second = await publish(connection, P4, P0, P2, P0)
    slots = Slots(connection, 4)
    async with pulling(slots):
        await eventually(lambda: len(slots.taken) == 4)
    assert slots.jobs == [p0_first, p0_second, p2, p4]


class GivingWay(Slots):
    """One job of a class may come for each that is held of a longer one, whatever came so already."""

    def on_top(self, priority: PriorityClass) -> int:
        longer = sum(lease.address.priority > priority for lease in self.held)
        return max(0, longer - max(0, len(self.held) - self.slots))


async def test_where_no_slot_is_free_a_shorter_job_comes_for_each_longer_one(
    connection: Connection, eventually: Eventually
) -> None:
    slots = GivingWay(connection, 2, PullSettings(tick_s=0.05))
    first, second = await publish(connection, P2, P1)
    async with pulling(slots):
        await eventually(lambda: len(slots.taken) == 2)
        # for the p2 a p1 comes, and no second one; for a p0 there are three longer ones
        _, short, _ = await publish(connection, P2, P1, P1)
        await eventually(lambda: len(slots.taken) == 3)
        (shorter,) = await publish(connection, P0)
        await eventually(lambda: len(slots.taken) == 4)
        assert set(slots.jobs) == {first, second, short, shorter}
        assert slots.most_held == 4
        await asyncio.gather(*(lease.ack() for lease in slots.held))
    assert slots.puller.surplus == 0


async def test_what_a_sweep_may_still_bring_is_told_until_it_is_answered(
    connection: Connection, eventually: Eventually
) -> None:
    await publish(connection, P0, P0)
    asked: list[int] = []
    deliveries: list[Delivery] = []

    async def deliver(delivery: Delivery) -> None:
        deliveries.append(delivery)
        asked.append(puller.asked)

    answers: list[int] = []
    puller = Puller(
        connection,
        "local",
        lambda: 5 - len(deliveries),
        deliver,
        on_answer=lambda: answers.append(puller.asked),
    )
    task = asyncio.create_task(puller.run())
    await eventually(lambda: len(answers) >= 3)
    puller.stop()
    await task
    # five were asked for; the two that came fill their slots, and the rest is free again
    assert asked == [5, 4]
    assert set(answers) == {0}
    assert puller.asked == 0


async def test_many_slots_are_shared_out_as_one_is(connection: Connection, eventually: Eventually) -> None:
    await publish(connection, *[P0] * 30, *[P4] * 5)
    slots = Slots(connection, 16)
    async with pulling(slots):
        await eventually(lambda: len(slots.taken) == 16)
    assert slots.classes == [*[P0] * 7, P4, *[P0] * 7, P4]


async def test_no_class_starves_under_a_flood(connection: Connection) -> None:
    await publish(connection, *[P0] * 60, P2, P4)
    slots = Slots(connection, 1)
    async with pulling(slots):
        await slots.work_off(40)
    # every eighth job is not of the flood
    assert slots.classes[7] is P2
    assert slots.classes[15] is P4
    assert Counter(slots.classes[:16]) == {P0: 14, P2: 1, P4: 1}


@pytest.mark.parametrize("num_slots", [1, 3, 8])
async def test_never_more_jobs_than_slots_and_each_job_once(connection: Connection, num_slots: int) -> None:
    wanted = await publish(connection, *[PriorityClass(f"p{number % 5}") for number in range(120)])
    slots = Slots(connection, num_slots)
    async with pulling(slots):
        await slots.work_off(len(wanted))
    assert Counter(slots.jobs) == Counter(wanted)
    assert slots.most_held <= num_slots


async def test_two_workers_share_a_burst_and_no_job_runs_twice(
    connection: Connection, eventually: Eventually
) -> None:
    one, two = Slots(connection, 5), Slots(connection, 5)
    async with pulling(one), pulling(two):
        wanted = await publish(connection, *[PriorityClass(f"p{number % 3}") for number in range(60)])
        while len(one.taken) + len(two.taken) < len(wanted) or one.held or two.held:
            await eventually(lambda: one.held or two.held)
            for slots in (one, two):
                if slots.held:
                    await slots.finish_one()
    assert Counter(one.jobs + two.jobs) == Counter(wanted)
    assert max(one.most_held, two.most_held) <= 5
    assert min(len(one.taken), len(two.taken)) > 0


@pytest.mark.parametrize("num_slots", [1, 8])
async def test_an_idle_worker_wakes_for_a_job(connection: Connection, num_slots: int) -> None:
    """With one slot the bell wakes it, with many a waiting request; neither needs the tick of a minute."""
    slots = Slots(connection, num_slots, PullSettings(tick_s=60.0))
    async with pulling(slots):
        for priority in (P1, P4, P0, P2):
            await publish(connection, priority)
            await slots.work_off(1)
    assert slots.classes == [P1, P4, P0, P2]
    assert slots.puller.surplus == 0


async def test_a_freed_slot_is_filled_without_a_tick(connection: Connection) -> None:
    slots = Slots(connection, 1, PullSettings(tick_s=60.0))
    async with pulling(slots):
        await publish(connection, P0, P0, P0)
        await slots.work_off(3)


async def test_a_job_handed_back_comes_again_without_a_bell(
    connection: Connection, eventually: Eventually
) -> None:
    (job,) = await publish(connection, P0)
    slots = Slots(connection, 1)
    async with pulling(slots):
        await eventually(lambda: slots.held)
        await slots.held.pop().nak()
        await eventually(lambda: len(slots.taken) == 2)
    assert slots.jobs == [job, job]
    assert [lease.attempt for lease in slots.taken] == [1, 2]


async def test_where_a_bell_is_heard_before_its_job_can_be_had_the_class_is_asked_again(
    connection: Connection, eventually: Eventually
) -> None:
    """A job handed back, and a bell by hand, stand for a consumer that is behind its stream."""
    (job,) = await publish(connection, P0)
    slots = Slots(connection, 1, PullSettings(tick_s=60.0, second_look_s=0.6))
    async with pulling(slots):
        await eventually(lambda: slots.held)
        await slots.held.pop().nak(0.2)
        await connection.publish(subjects.bell("local", P0), b"")
        await eventually(lambda: len(slots.taken) == 2)
    assert slots.jobs == [job, job]


async def test_a_job_handed_back_comes_again_in_the_midst_of_a_flood(
    connection: Connection, eventually: Eventually
) -> None:
    """No bell rings for it, and the worker is never idle for as long as a tick."""
    (job,) = await publish(connection, P3)
    slots = Slots(connection, 1, PullSettings(tick_s=0.1))
    async with pulling(slots):
        await eventually(lambda: slots.held)
        await publish(connection, *[P0] * 300)
        await slots.held.pop().nak(0.02)
        slots.puller.wake()
        while slots.jobs.count(job) < 2 and len(slots.taken) < 300:
            await slots.work_off(1)
    assert slots.jobs.count(job) == 2


async def test_a_job_without_a_free_slot_goes_back_at_once(
    connection: Connection, eventually: Eventually
) -> None:
    full = Slots(connection, 8, PullSettings(poll_s=30.0))
    async with pulling(full):
        # its requests wait at every class; then its slots are gone
        await publish(connection, P0)
        await eventually(lambda: full.taken)
        consumer = "CONSUMER.INFO.JOBS.local-p1"
        async with asyncio.timeout(10.0):
            while (await ask(connection, consumer)).fields.get("num_waiting") != 1:
                pass
        full.slots = 0
        (job,) = await publish(connection, P1)
        await eventually(lambda: full.puller.surplus == 1)
        other = Slots(connection, 1)
        async with pulling(other):
            await eventually(lambda: other.taken)
        assert other.jobs == [job]
        assert len(full.taken) == 1
        full.slots = 8
        # end its waiting requests, or stopping would wait for them
        for number in (0, 2, 3, 4):
            await publish(connection, PriorityClass(f"p{number}"))


async def test_after_stop_nothing_comes_and_nothing_is_lost(
    connection: Connection, eventually: Eventually
) -> None:
    slots = Slots(connection, 8)
    async with pulling(slots) as task:
        await publish(connection, P0)
        await eventually(lambda: slots.taken)
        slots.puller.stop()
        (job,) = await publish(connection, P1)
        await task
    assert len(slots.taken) == 1
    other = Slots(connection, 1)
    async with pulling(other):
        await eventually(lambda: other.taken)
    assert other.jobs == [job]


async def test_a_lost_topology_ends_the_run_after_its_grace(nats_server: LocalServer) -> None:
    connection = await Connection.open(ConnectionSettings(url=nats_server.url))
    slots = Slots(connection, 2, PullSettings(missing_grace_s=0.2))
    with pytest.raises(TopologyMissing, match="consumer local-p0 is missing"):
        await slots.puller.run()
    await connection.close()


async def test_a_broken_queue_is_said_once_and_not_asked_in_a_loop(
    nats_server: LocalServer, eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="sparkle.queue.puller")
    connection = await Connection.open(ConnectionSettings(url=nats_server.url))
    slots = Slots(connection, 2)
    async with pulling(slots):
        await eventually(lambda: len(caplog.records) == 5)
        await topology.apply(connection, TopologySettings(regions="local"))
        (job,) = await publish(connection, P3)
        await eventually(lambda: slots.taken and len(caplog.records) == 10)
    assert slots.jobs == [job]
    # once for each class, however often it was asked
    messages = [record.getMessage() for record in caplog.records]
    assert messages == ["pull_broken"] * 5 + ["pull_recovered"] * 5
    await connection.close()


async def test_it_goes_on_after_a_server_restart(
    nats_server: LocalServer, connection: Connection, eventually: Eventually
) -> None:
    # what the old connection had asked for is forgotten at once, not when its answer is late
    slots = Slots(connection, 8, PullSettings(answer_timeout_s=60.0))
    async with pulling(slots):
        await publish(connection, P0)
        await eventually(lambda: slots.taken)
        back = asyncio.Event()
        connection.on_reconnect(back.set)
        await nats_server.restart()
        await back.wait()
        await topology.apply(connection, TopologySettings(regions="local"))
        (job,) = await publish(connection, P2)
        await eventually(lambda: len(slots.taken) == 2)
    assert slots.jobs[1] == job


async def test_a_deleted_consumer_harms_no_other_class(
    connection: Connection, eventually: Eventually
) -> None:
    slots = Slots(connection, 8)
    async with pulling(slots):
        await publish(connection, P0)
        await eventually(lambda: slots.taken)
        assert (await ask(connection, "CONSUMER.DELETE.JOBS.local-p1")).code == 0
        await publish(connection, P4)
        await eventually(lambda: len(slots.taken) == 2)
        await topology.apply(connection, TopologySettings(regions="local"))
        await publish(connection, P1)
        await eventually(lambda: len(slots.taken) == 3)
    assert slots.classes == [P0, P4, P1]
