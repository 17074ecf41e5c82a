"""An engine is started again: a job that its worker had said yes to before goes back, and is no failure."""

from __future__ import annotations

import asyncio
import logging
import os
import signal

import pytest

from sparkle.engine.frames import Ready
from sparkle.queue.connection import Connection
from sparkle.queue.delivery import Delivery
from sparkle.queue.local import LocalServer
from sparkle.queue.puller import Puller
from sparkle.schemas import subjects
from sparkle.schemas.codec import encode
from sparkle.schemas.control import Offer
from sparkle.schemas.priority import PriorityClass
from tests.conftest import Eventually
from tests.engine_stand_in import StandInEngine
from tests.worker_at_work import REGION, WAIT_S, Producer, at_work, make_job, tokens_of


class Reloading(StandInEngine):
    """One that loads at once the first time, and after that when told."""

    def __init__(self) -> None:
        super().__init__(slots=4)
        self.starts = 0
        self.loads_again, self.go_on = asyncio.Event(), asyncio.Event()

    async def start(self) -> Ready:
        self.starts += 1
        if self.starts > 1:
            self.loads_again.set()
            await self.go_on.wait()
        return await super().start()


async def test_what_is_delivered_while_it_loads_goes_back_and_is_answered_later(
    connection: Connection,
    nats_server: LocalServer,
    caplog: pytest.LogCaptureFixture,
    eventually: Eventually,
) -> None:
    caplog.set_level(logging.INFO)
    producer, deliveries, engine = Producer(connection), asyncio.Queue[Delivery](), Reloading()
    puller = Puller(connection, REGION, lambda: 1 - deliveries.qsize(), deliveries.put)
    pulling = asyncio.create_task(puller.run())
    watched = await producer.submit(make_job())
    async with asyncio.timeout(WAIT_S):
        delivery = await deliveries.get()
    puller.stop()
    await pulling
    async with at_work(nats_server.url, engine=engine, name="w-1"):
        offer = Offer(job=watched.job.id, priority=PriorityClass.P0, wait_ms=1000)
        yes = await connection.request(subjects.offer(REGION, "w-1"), encode(offer))
        os.kill(engine.pid, signal.SIGKILL)
        async with asyncio.timeout(WAIT_S):
            await engine.loads_again.wait()
        headers = {
            subjects.SUBJECT_HEADER: delivery.subject,
            subjects.ACK_HEADER: delivery.ack_subject,
        }
        await connection.publish(yes.reply, delivery.payload, headers=headers)
        await eventually(lambda: "job_handed_back" in [record.message for record in caplog.records])
        assert watched.ends == []
        engine.go_on.set()
        assert (await watched.result()).tokens == tokens_of(watched.job)
        await producer.until_empty()
