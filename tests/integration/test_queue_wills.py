"""A worker that dies leaves its jobs to its heir, which hands them back; one that lives keeps them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
import pytest_asyncio

from sparkle.queue import wills
from sparkle.queue.connection import Connection, ConnectionSettings
from sparkle.queue.delivery import Delivery
from sparkle.queue.lease import Lease
from sparkle.queue.local import LocalServer
from sparkle.queue.outgoing import JobPublisher
from sparkle.queue.puller import Puller
from sparkle.queue.wills import Heir, WillMaker
from sparkle.schemas import subjects
from sparkle.schemas.codec import encode
from sparkle.schemas.control import Will
from sparkle.schemas.job import Job
from sparkle.schemas.priority import PriorityClass
from tests.conftest import REGION, Eventually

WAIT_S = 20.0


def process_of(name: str) -> str:
    """The process of a worker that was not started again."""
    return name.encode().hex().rjust(16, "0")


class Site:
    """Workers on one server, as far as wills go."""

    def __init__(self, server: LocalServer, stack: AsyncExitStack) -> None:
        self.there = ["w1", "w2", "w3"]
        self.handed_on: list[int] = []
        self._server = server
        self._stack = stack

    async def connect(self, name: str) -> Connection:
        connection = await Connection.open(ConnectionSettings(url=self._server.url, name=name))
        self._stack.push_async_callback(connection.close)
        return connection

    async def heir(self, name: str, connection: Connection | None = None, process: str = "") -> Heir:
        """One that looks after others."""
        connection = connection or await self.connect(name)
        heir = Heir(connection, REGION, name, process or process_of(name), on_handed_on=self.handed_on.append)
        await heir.start()
        # by then the server knows the subscription
        assert await connection.echo(WAIT_S)
        self._stack.callback(asyncio.create_task(heir.run()).cancel)
        return heir

    @asynccontextmanager
    async def will_of(
        self, name: str, leases: Callable[[], list[str]], connection: Connection | None = None
    ) -> AsyncGenerator[WillMaker]:
        """One that tells its will until it ends well."""
        connection = connection or await self.connect(name)
        will = WillMaker(connection, REGION, name, process_of(name), leases=leases, peers=lambda: self.there)
        # whoever is asked whether it lives says so by its heir's half
        await self.heir(name, connection)
        task = asyncio.create_task(will.run())
        try:
            yield will
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@pytest_asyncio.fixture
async def site(connection: Connection, nats_server: LocalServer) -> AsyncGenerator[Site]:
    async with AsyncExitStack() as stack:
        yield Site(nats_server, stack)


async def one_job(connection: Connection) -> tuple[asyncio.Queue[Delivery], Puller, asyncio.Task[None]]:
    """A job on the queue, and who pulls jobs."""
    deliveries: asyncio.Queue[Delivery] = asyncio.Queue()
    puller = Puller(connection, REGION, lambda: 8, deliveries.put)
    pulling = asyncio.create_task(puller.run())
    job = Job(prompt="x", tenant="acme", region=REGION)
    await JobPublisher(connection).publish(job, PriorityClass.P0, publication=1)
    return deliveries, puller, pulling


async def test_the_jobs_of_one_whose_connection_is_gone_come_again_at_once(
    site: Site, connection: Connection, eventually: Eventually
) -> None:
    deliveries, puller, pulling = await one_job(connection)
    first = await deliveries.get()
    heir, dying = await site.heir("w2"), await site.connect("w1")
    async with site.will_of("w1", lambda: [first.ack_subject], dying):
        await eventually(lambda: heir.makers == ["w1"])
        await dying.close()
        async with asyncio.timeout(WAIT_S):
            again = await deliveries.get()
    assert (again.subject, again.attempt) == (first.subject, 2)
    assert site.handed_on == [1]
    assert heir.makers == []
    assert await Lease(connection, again).ack()
    puller.stop()
    await pulling


async def test_one_that_ends_well_takes_its_will_back(site: Site, eventually: Eventually) -> None:
    heir = await site.heir("w2")
    async with site.will_of("w1", lambda: ["$JS.ACK.JOBS.local-p0.1.1.1.1.0"]) as will:
        await eventually(lambda: heir.makers == ["w1"])
        assert will.heir == "w2"
    await eventually(lambda: not heir.makers)
    assert site.handed_on == []


async def test_one_that_says_nothing_but_lives_keeps_its_jobs(site: Site, eventually: Eventually) -> None:
    heir, connection = await site.heir("w2"), await site.connect("w1")
    await site.heir("w1", connection)
    will = Will(worker="w1", process=process_of("w1"), leases=["$JS.ACK.JOBS.local-p0.1.1.1.1.0"])
    await connection.request(subjects.will(REGION, "w2"), encode(will))
    assert heir.makers == ["w1"]
    # it has another heir, or told this one nothing for long: nothing is handed on
    await eventually(lambda: not heir.makers)
    assert site.handed_on == []


async def test_another_heir_is_found_when_the_first_one_dies(site: Site, eventually: Eventually) -> None:
    connection = await site.connect("w2")
    first, second = await site.heir("w2", connection), await site.heir("w3")
    async with site.will_of("w1", lambda: ["$JS.ACK.JOBS.local-p0.1.1.1.1.0"]) as will:
        await eventually(lambda: first.makers == ["w1"])
        await connection.close()
        await eventually(lambda: second.makers == ["w1"])
        assert will.heir == "w3"


async def test_alone_there_is_no_heir_and_the_first_that_comes_is_it(
    site: Site, eventually: Eventually
) -> None:
    site.there = ["w1"]
    async with site.will_of("w1", lambda: ["$JS.ACK.JOBS.local-p0.1.1.1.1.0"]) as will:
        heir = await site.heir("w0")
        assert will.heir is None
        site.there.append("w0")
        will.changed()
        await eventually(lambda: heir.makers == ["w1"])


async def test_after_a_lost_connection_old_wills_count_for_nothing(
    site: Site, eventually: Eventually
) -> None:
    """The queue may be another one, where these messages are other jobs."""
    own, dying = await site.connect("w2"), await site.connect("w1")
    heir = await site.heir("w2", own)
    will = Will(worker="w1", process=process_of("w1"), leases=["$JS.ACK.JOBS.local-p0.1.1.1.1.0"])
    await dying.request(subjects.will(REGION, "w2"), encode(will))
    assert heir.makers == ["w1"]
    await own.reconnect()
    await dying.close()
    await eventually(lambda: own.is_up and not heir.makers)
    assert site.handed_on == []


async def test_a_will_that_names_no_job_of_the_queue_is_refused(site: Site) -> None:
    heir, connection = await site.heir("w2"), await site.connect("w1")
    for lease in (
        "$JS.ACK.RESULTS.x.1",
        "$JS.API.STREAM.PURGE.JOBS",
        "jobs.local.p0.acme.x",
        "$JS.ACK.JOBS.>",
    ):
        will = Will.model_construct(worker="w1", process=process_of("w1"), leases=[lease])
        await connection.publish(subjects.will(REGION, "w2"), encode(will))
    await connection.request(subjects.will(REGION, "w2"))
    assert heir.makers == []


async def test_one_that_is_silent_on_a_standing_connection_is_given_longer(
    site: Site, monkeypatch: pytest.MonkeyPatch, eventually: Eventually
) -> None:
    monkeypatch.setattr(wills, "_ANSWER_S", 0.01)
    heir, connection = await site.heir("w2"), await site.connect("w1")
    asked: list[str] = []

    async def say_nothing(envelope: object) -> None:
        asked.append(str(envelope))

    await connection.subscribe(subjects.will(REGION, "w1"), say_nothing)
    will = Will(worker="w1", process=process_of("w1"), leases=["$JS.ACK.JOBS.local-p0.1.1.1.1.0"])
    await connection.publish(subjects.will(REGION, "w2"), encode(will))
    await eventually(lambda: site.handed_on)
    # far more questions than it takes where nobody listens
    assert len(asked) == 12
    assert heir.makers == []


async def test_one_that_was_started_again_under_its_name_does_not_pass_for_the_dead_one(
    site: Site, eventually: Eventually
) -> None:
    heir, connection = await site.heir("w2"), await site.connect("w1")
    will = Will(worker="w1", process=process_of("w1"), leases=["$JS.ACK.JOBS.local-p0.1.1.1.1.0"])
    await connection.request(subjects.will(REGION, "w2"), encode(will))
    await site.heir("w1", process="00000000000000ff")
    await eventually(lambda: site.handed_on == [1])
    assert heir.makers == []
