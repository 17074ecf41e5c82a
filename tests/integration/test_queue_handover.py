"""A follow-up changes hands on a real server: taken, declined, nobody there, too late, on another queue."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace

import pytest
import pytest_asyncio

from sparkle.queue.connection import Connection, ConnectionSettings, Envelope
from sparkle.queue.delivery import Delivery
from sparkle.queue.handover import HandoverSettings, OfferDesk, Offers, Way
from sparkle.queue.lease import Lease
from sparkle.queue.local import LocalServer
from sparkle.queue.outgoing import JobPublisher
from sparkle.queue.puller import Puller
from sparkle.queue.status import read_classes
from sparkle.schemas import subjects
from sparkle.schemas.codec import decode, encode
from sparkle.schemas.control import Offer
from sparkle.schemas.ids import new_job_id
from sparkle.schemas.job import Job
from sparkle.schemas.priority import PriorityClass
from sparkle.workers.slots import Slots
from tests.conftest import Eventually

REGION, HOME = "local", "w-home"
# nothing here takes this long: a test that ends has not waited for it
PATIENT = HandoverSettings(wait_s=30.0, answer_s=30.0, delivery_s=30.0)
CANARY = "canary-7f3a91"
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@dataclass
class Home:
    """A worker that conversations live at, with one slot."""

    connection: Connection
    delivered: list[Delivery] = field(default_factory=list[Delivery])
    running: int = 0

    def __post_init__(self) -> None:
        self.slots = Slots(1, lambda: self.running)

    async def answer(self, settings: HandoverSettings = PATIENT, region: str = REGION) -> OfferDesk:
        """Answer offers from now on; the server knows it on return."""
        desk = OfferDesk(self.connection, region, HOME, self.slots, self._deliver, settings)
        await desk.start()
        assert await self.connection.echo(5.0)
        return desk

    async def _deliver(self, delivery: Delivery) -> None:
        self.running += 1
        self.delivered.append(delivery)

    def end_a_job(self) -> None:
        self.running -= 1
        self.slots.freed()


OpenConnection = Callable[[], Awaitable[Connection]]
Pull = Callable[..., Awaitable[Lease]]


@pytest_asyncio.fixture
async def opened(nats_server: LocalServer) -> AsyncGenerator[OpenConnection]:
    """Opens further connections to the server."""
    async with AsyncExitStack() as stack:

        async def open_one() -> Connection:
            made = await Connection.open(ConnectionSettings(url=nats_server.url))
            stack.push_async_callback(made.close)
            return made

        yield open_one


@pytest_asyncio.fixture
async def home(connection: Connection, opened: OpenConnection) -> Home:
    return Home(await opened())


@pytest_asyncio.fixture
async def pull(connection: Connection) -> AsyncGenerator[Pull]:
    """Publishes a follow-up of HOME and pulls it as another worker, by `connection`."""
    deliveries: asyncio.Queue[Delivery] = asyncio.Queue()
    puller = Puller(connection, REGION, lambda: 100, deliveries.put)
    pulling = asyncio.create_task(puller.run())

    async def one(named: str | None = HOME, further: Mapping[str, str] | None = None) -> Lease:
        """`further`: headers that only another client than ours would send."""
        job = Job(prompt=CANARY, tenant="acme", region=REGION, traceparent=TRACE)
        await JobPublisher(connection).publish(job, PriorityClass.P0, publication=1, home=named)
        delivery = await deliveries.get()
        return Lease(connection, replace(delivery, headers={**delivery.headers, **(further or {})}))

    yield one
    pulling.cancel()
    await asyncio.gather(pulling, return_exceptions=True)


def offers(connection: Connection, settings: HandoverSettings = PATIENT) -> Offers:
    return Offers(connection, REGION, "w-puller", settings)


async def test_a_home_with_a_free_slot_has_the_lease(
    connection: Connection, home: Home, pull: Pull, eventually: Eventually
) -> None:
    await home.answer()
    lease = await pull()
    assert await offers(connection).offer(lease) is Way.HANDED_OVER
    await eventually(lambda: home.delivered)
    (delivery,) = home.delivered
    ours = lease.delivery
    assert (delivery.subject, delivery.payload) == (ours.subject, ours.payload)
    assert (delivery.ack_subject, delivery.attempt) == (ours.ack_subject, 1)
    assert (delivery.stored_s, delivery.headers["traceparent"]) == (ours.stored_s, TRACE)
    assert (home.running, home.slots.free) == (1, 0)
    # who was handed the lease ends it
    assert await Lease(home.connection, delivery).ack()
    assert (await read_classes(connection, REGION))[0].running == 0


async def test_only_the_payload_holds_content(
    connection: Connection, home: Home, pull: Pull, eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    seen: list[Envelope] = []

    async def note(envelope: Envelope) -> None:
        seen.append(envelope)

    for subject in ("offer.>", "_INBOX.>"):
        await home.connection.subscribe(subject, note)
    await home.answer()
    assert await offers(connection).offer(await pull()) is Way.HANDED_OVER
    await eventually(lambda: home.delivered)
    await eventually(lambda: [envelope for envelope in seen if CANARY.encode() in envelope.payload])
    for envelope in seen:
        assert CANARY not in f"{envelope.subject} {dict(envelope.headers)} {envelope.reply}"
    assert CANARY not in "".join(str(vars(record)) for record in caplog.records)


async def test_a_busy_home_takes_it_when_a_slot_becomes_free(
    connection: Connection, home: Home, pull: Pull, eventually: Eventually
) -> None:
    await home.answer()
    home.running = 1
    asked = asyncio.create_task(offers(connection).offer(await pull()))
    await eventually(lambda: home.slots.waiting)
    home.end_a_job()
    assert await asked is Way.HANDED_OVER
    await eventually(lambda: home.delivered)


async def test_a_busy_home_says_no_after_the_wait(connection: Connection, home: Home, pull: Pull) -> None:
    short = HandoverSettings(wait_s=0.2, answer_s=30.0)
    await home.answer(short)
    home.running = 1
    lease = await pull()
    assert await offers(connection, short).offer(lease) is Way.BUSY
    # by the queue's own time of the job; an offer's wait is in whole milliseconds
    assert time.time() - lease.stored_s >= 0.199
    assert home.delivered == []
    home.end_a_job()
    assert home.slots.free == 1


async def test_a_job_that_waited_in_the_queue_waits_no_more(
    connection: Connection, home: Home, pull: Pull
) -> None:
    asked: list[Offer] = []

    async def note(envelope: Envelope) -> None:
        asked.append(decode(envelope.payload, Offer))

    await home.connection.subscribe(subjects.offer(REGION, HOME), note)
    await home.answer()
    home.running = 1
    lease = await pull()
    at_once = HandoverSettings(wait_s=1e-9, answer_s=30.0)
    assert await offers(connection, at_once).offer(lease) is Way.BUSY
    assert [offer.wait_ms for offer in asked] == [0]


async def test_a_home_that_is_gone_costs_no_wait(connection: Connection, home: Home, pull: Pull) -> None:
    lease = await pull()
    # PATIENT would wait for half a minute
    assert await offers(connection).offer(lease) is Way.GONE
    desk = await home.answer()
    await desk.stop()
    assert await home.connection.echo(5.0)
    assert await offers(connection).offer(lease) is Way.GONE


async def test_a_home_that_stops_answers_what_waits(
    connection: Connection, home: Home, pull: Pull, eventually: Eventually
) -> None:
    desk = await home.answer()
    home.running = 1
    asked = asyncio.create_task(offers(connection).offer(await pull()))
    await eventually(lambda: home.slots.waiting)
    home.slots.close()
    await desk.stop()
    assert await asked is Way.BUSY


async def test_a_home_that_cannot_wait_any_longer_takes_nothing(
    connection: Connection, home: Home, eventually: Eventually
) -> None:
    desk = await home.answer()
    inbox = connection.new_inbox()
    yes = asyncio.Event()

    async def say_nothing(_: Envelope) -> None:
        yes.set()

    await connection.subscribe(inbox, say_nothing)
    offer = encode(Offer(job=new_job_id(), priority=PriorityClass.P0, wait_ms=0))
    await connection.publish(subjects.offer(REGION, HOME), offer, reply=inbox)
    await yes.wait()
    assert home.slots.free == 0
    stopping = asyncio.create_task(desk.stop())
    # a task that has not begun has nothing to clean up
    await asyncio.sleep(0)
    stopping.cancel()
    await asyncio.wait({stopping})
    await eventually(lambda: home.slots.free == 1)
    assert home.delivered == []


async def test_a_home_that_does_not_answer_is_busy_and_its_late_yes_gets_nothing(
    connection: Connection, home: Home, pull: Pull, eventually: Eventually
) -> None:
    frozen: list[Envelope] = []

    async def note(envelope: Envelope) -> None:
        frozen.append(envelope)

    silent = await home.connection.subscribe(subjects.offer(REGION, HOME), note)
    short = HandoverSettings(wait_s=0.05, answer_s=0.05, delivery_s=0.1)
    assert await offers(connection, short).offer(await pull()) is Way.BUSY
    await silent.stop()
    # it thaws, and finds the offer
    await home.answer(short)
    late = frozen[0]
    await home.connection.publish(late.subject, late.payload, reply=late.reply)
    await eventually(lambda: home.slots.free == 0)
    await eventually(lambda: home.slots.free == 1)
    assert home.delivered == []


async def test_nobody_is_asked_without_a_name_or_with_a_bad_one(
    connection: Connection, home: Home, pull: Pull
) -> None:
    asked: list[Envelope] = []

    async def note(envelope: Envelope) -> None:
        asked.append(envelope)

    await home.connection.subscribe("offer.>", note)
    for named in (None, "", "*", ">", "a.b", "W", "w 1", "x" * 64):
        assert await offers(connection).offer(await pull(named)) is None
    # its own conversation
    assert await offers(connection).offer(await pull("w-puller")) is Way.HOME
    assert await home.connection.echo(5.0)
    assert asked == []


async def test_another_regions_worker_of_the_same_name_is_not_asked(
    connection: Connection, home: Home, pull: Pull
) -> None:
    await home.answer(region="eu")
    assert await offers(connection).offer(await pull()) is Way.GONE
    assert home.delivered == []


async def test_what_no_longer_fits_with_its_new_headers_stays(
    connection: Connection, home: Home, eventually: Eventually
) -> None:
    # the home is told: PATIENT would keep its slot for half a minute
    await home.answer()
    address = subjects.JobAddress(REGION, PriorityClass.P0, "acme", new_job_id())
    delivery = Delivery(
        subject=address.subject,
        payload=bytes(connection.max_payload_bytes),
        headers={subjects.HOME_HEADER: HOME},
        ack_subject="nowhere",
        attempt=1,
        stored_s=time.time(),
        pending=0,
    )
    assert await offers(connection).offer(Lease(connection, delivery)) is Way.BUSY
    await eventually(lambda: home.slots.free == 1)
    assert home.delivered == []


HOSTILE = {
    "(not a name)": b"1",
    "with@sign": b"1",
    "control\x01": b"1",
    "Status": b"503",
    "Nats-Expected-Stream": b"JOBS",
    "sparkle-ack": b"$JS.ACK.JOBS.other",
    subjects.ACK_HEADER: b"$JS.ACK.JOBS.local-p0.1.1.1.1.0",
    subjects.SUBJECT_HEADER: b"jobs.local.p0.victim.x",
    "latin": b"\xff\xfe",
    "long": b"x" * 10_000,
}


@pytest.mark.parametrize("header", HOSTILE)
async def test_no_header_of_a_producer_keeps_its_job_from_being_handed_over(
    connection: Connection, home: Home, pull: Pull, eventually: Eventually, header: str
) -> None:
    await home.answer()
    lease = await pull(further={header: HOSTILE[header].decode(errors="replace")})
    assert await offers(connection).offer(lease) is Way.HANDED_OVER
    await eventually(lambda: home.delivered)
    (delivery,) = home.delivered
    ours = lease.delivery
    assert (delivery.subject, delivery.ack_subject) == (ours.subject, ours.ack_subject)
    assert dict(delivery.headers) == {
        subjects.SUBJECT_HEADER: ours.subject,
        subjects.ACK_HEADER: ours.ack_subject,
        subjects.TRACE_HEADER: TRACE,
    }
    assert delivery.payload == ours.payload


@pytest.mark.parametrize(("key_id", "goes_along"), [("k-1", True), ("no name", False)])
async def test_the_id_of_the_key_goes_along(
    connection: Connection, home: Home, pull: Pull, eventually: Eventually, key_id: str, goes_along: bool
) -> None:
    await home.answer()
    lease = await pull(further={subjects.KEY_HEADER: key_id})
    assert await offers(connection).offer(lease) is Way.HANDED_OVER
    await eventually(lambda: home.delivered)
    (delivery,) = home.delivered
    assert delivery.headers.get(subjects.KEY_HEADER) == (key_id if goes_along else None)


async def test_a_lease_from_before_a_lost_connection_is_not_handed_on(
    connection: Connection, home: Home, pull: Pull, eventually: Eventually
) -> None:
    await home.answer(HandoverSettings(delivery_s=0.1, wait_s=30.0))
    home.running = 1
    lease = await pull()
    asked = asyncio.create_task(offers(connection).offer(lease))
    await eventually(lambda: home.slots.waiting)
    back = asyncio.Event()
    connection.on_reconnect(back.set)
    await connection.reconnect()
    await back.wait()
    home.end_a_job()
    assert await asked is Way.BUSY
    await eventually(lambda: home.slots.free == 1)
    assert home.delivered == []


async def test_a_delivery_from_before_the_homes_lost_connection_is_not_taken(
    connection: Connection, home: Home, pull: Pull, eventually: Eventually
) -> None:
    yes: list[Envelope] = []

    async def note(envelope: Envelope) -> None:
        yes.append(envelope)

    await home.answer()
    lease = await pull()
    inbox = connection.new_inbox()
    await connection.subscribe(inbox, note)
    offer = Offer(job=lease.address.job, priority=PriorityClass.P0, wait_ms=0)
    await connection.publish(subjects.offer(REGION, HOME), encode(offer), reply=inbox)
    await eventually(lambda: yes)
    back = asyncio.Event()
    home.connection.on_reconnect(back.set)
    await home.connection.reconnect()
    await back.wait()
    ours = lease.delivery
    headers = {subjects.SUBJECT_HEADER: ours.subject, subjects.ACK_HEADER: ours.ack_subject}
    await connection.publish(yes[0].reply, ours.payload, headers=headers)
    await eventually(lambda: home.slots.free == 1)
    assert home.delivered == []


async def test_an_answer_that_is_no_delivery_is_dropped(
    connection: Connection, home: Home, eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    await home.answer()
    offer = encode(Offer(job=new_job_id(), priority=PriorityClass.P0, wait_ms=0))

    async def not_a_delivery(envelope: Envelope) -> None:
        await connection.publish(envelope.reply, b"x")

    inbox = connection.new_inbox()
    await connection.subscribe(inbox, not_a_delivery)
    await connection.publish(subjects.offer(REGION, HOME), offer, reply=inbox)

    def refusals() -> list[str]:
        return [vars(record)["error"] for record in caplog.records if record.message == "offer_not_taken"]

    await eventually(refusals)
    assert refusals() == ["InvalidMessage"]
    assert (home.slots.free, home.delivered) == (1, [])


async def test_an_offer_without_an_answer_address_or_that_is_none_keeps_no_slot(
    connection: Connection, home: Home
) -> None:
    await home.answer()
    offer = encode(Offer(job=new_job_id(), priority=PriorityClass.P0, wait_ms=0))
    await connection.publish(subjects.offer(REGION, HOME), offer)
    await connection.publish(subjects.offer(REGION, HOME), b"SECRET", reply=connection.new_inbox())
    assert await connection.echo(5.0)
    assert await home.connection.echo(5.0)
    assert home.slots.free == 1
