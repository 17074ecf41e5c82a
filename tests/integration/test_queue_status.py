"""Status over a real server: counts, ages and workers; no job is read for it."""

from __future__ import annotations

import asyncio
import time
from functools import partial

import pytest

from sparkle.errors import TopologyMissing
from sparkle.queue.connection import Connection, ConnectionSettings, Envelope
from sparkle.queue.control import MAX_WORKERS, HeartbeatSender, WorkerRoster
from sparkle.queue.delivery import Delivery
from sparkle.queue.local import LocalServer
from sparkle.queue.outgoing import JobPublisher
from sparkle.queue.puller import Puller
from sparkle.queue.status import read_classes, read_status
from sparkle.schemas import subjects
from sparkle.schemas.codec import encode
from sparkle.schemas.control import Heartbeat, WorkerState
from sparkle.schemas.ids import job_id_from, new_job_id
from sparkle.schemas.job import Job
from sparkle.schemas.priority import PriorityClass
from tests.conftest import Eventually

P0, P1, P2, P3, P4 = PriorityClass


def heartbeat(worker: str = "w1", region: str = "local") -> Heartbeat:
    return Heartbeat(
        worker=worker,
        region=region,
        state=WorkerState.READY,
        model="sparkle-tiny",
        slots=8,
        running=[new_job_id()],
        sent_ms=1,
    )


async def test_it_counts_waiting_and_running_and_knows_the_oldest(connection: Connection) -> None:
    taken: asyncio.Queue[Delivery] = asyncio.Queue()
    puller = Puller(connection, "local", lambda: 1 - taken.qsize(), taken.put)
    pulling = asyncio.create_task(puller.run())
    publisher, now_ms = JobPublisher(connection), time.time_ns() // 1_000_000
    job = Job(prompt="x", tenant="acme", region="local", id=job_id_from(now_ms - 90_000, 1))
    await publisher.publish(job, P3, publication=1)
    while taken.empty():
        await connection.echo(5.0)
    for number, age_ms in enumerate((1_000, 60_000, 5_000)):
        job = Job(prompt="x", tenant="acme", region="local", id=job_id_from(now_ms - age_ms, number))
        await publisher.publish(job, P1, publication=1)
    one, three = [(await read_classes(connection, "local"))[number] for number in (1, 3)]
    assert (one.waiting, one.running, three.waiting, three.running) == (3, 0, 0, 1)
    assert one.oldest_s == pytest.approx(60.0, abs=10.0)
    assert three.oldest_s == pytest.approx(90.0, abs=10.0)
    pulling.cancel()
    await asyncio.gather(pulling, return_exceptions=True)


async def test_it_lists_the_workers_of_its_region(nats_server: LocalServer, connection: Connection) -> None:
    other = await Connection.open(ConnectionSettings(url=nats_server.url))
    senders = [
        HeartbeatSender(other, partial(heartbeat, "w2"), 0.02),
        HeartbeatSender(other, partial(heartbeat, "w1"), 0.02),
        HeartbeatSender(other, partial(heartbeat, "w3", "mars"), 0.02),
    ]
    beating = [asyncio.create_task(sender.run()) for sender in senders]
    status = await read_status(connection, "local", listen_s=0.3)
    assert [worker.worker for worker in status.workers] == ["w1", "w2"]
    assert [status.waiting for status in status.classes] == [0] * 5
    for task in beating:
        task.cancel()
    await asyncio.gather(*beating, return_exceptions=True)
    await other.close()


async def test_a_newcomer_is_answered_and_a_change_is_told_once(
    nats_server: LocalServer, connection: Connection, eventually: Eventually
) -> None:
    never_s = 10_000.0
    other = await Connection.open(ConnectionSettings(url=nats_server.url))
    news: list[tuple[str, WorkerState]] = []
    old = HeartbeatSender(connection, partial(heartbeat, "old"), never_s)

    def meet(beat: Heartbeat) -> None:
        news.append((beat.worker, beat.state))
        if beat.worker != "old":
            old.soon()

    roster, newcomers = WorkerRoster(connection, "local", on_news=meet), WorkerRoster(other, "local")
    await roster.start()
    beating = asyncio.create_task(old.run())
    await eventually(lambda: news)
    await newcomers.start()
    assert await other.echo(5.0)
    for state in (WorkerState.STARTING, WorkerState.STARTING, WorkerState.READY):
        await HeartbeatSender(other, partial(heartbeat("new").evolve, state=state)).send()
    await eventually(lambda: [worker.worker for worker in newcomers.workers()] == ["new", "old"])
    await eventually(lambda: len(news) == 3)
    assert news[1:] == [("new", WorkerState.STARTING), ("new", WorkerState.READY)]
    beating.cancel()
    await asyncio.gather(beating, return_exceptions=True)
    await other.close()


async def test_a_silent_worker_is_forgotten(connection: Connection) -> None:
    heard = asyncio.Event()

    async def hear(_: Envelope) -> None:
        heard.set()

    roster = WorkerRoster(connection, "local", forget_after_s=0.0)
    await roster.start()
    await connection.subscribe("hb.>", hear)
    await HeartbeatSender(connection, heartbeat).send()
    await heard.wait()
    assert roster.workers() == []
    await roster.stop()


async def test_nobody_speaks_for_another_worker_and_the_silent_take_no_room(connection: Connection) -> None:
    roster = WorkerRoster(connection, "local", forget_after_s=60.0)
    await roster.start()
    for number in range(MAX_WORKERS + 10):
        forged = heartbeat(f"w{number}")
        await connection.publish(subjects.heartbeat("local", forged.worker), encode(forged))
    await connection.publish(subjects.heartbeat("local", "w7"), encode(heartbeat("honest")))
    await connection.publish(subjects.heartbeat("local", "honest"), encode(heartbeat("honest", "mars")))
    assert await connection.echo(10.0)
    heard = {worker.worker for worker in roster.workers()}
    assert len(heard) == MAX_WORKERS
    assert "honest" not in heard
    assert "w9" not in heard
    assert f"w{MAX_WORKERS + 9}" in heard
    await roster.stop()


async def test_an_undeclared_region_is_said_so(connection: Connection) -> None:
    with pytest.raises(
        TopologyMissing, match="mars-p0 is not declared; run `sparkle topology apply --region mars`"
    ):
        await read_classes(connection, "mars")
