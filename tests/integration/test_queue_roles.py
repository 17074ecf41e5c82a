"""On a bus with the shipped configuration each role can do its work, and nothing else. All of it is real."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from sparkle.errors import NotConnected
from sparkle.producers.client import Client
from sparkle.producers.metering.accounts import AccountFile
from sparkle.producers.metering.metering import open_metering
from sparkle.producers.metering.settings import MeteringSettings
from sparkle.producers.metering.tenant import Tenant
from sparkle.producers.metering.tenant_book import TenantBook
from sparkle.producers.settings import ClientSettings
from sparkle.queue import topology, usage_streams
from sparkle.queue.answered import AnswerRecords
from sparkle.queue.answers import AnswerFeed
from sparkle.queue.api import NO_STREAM, ask
from sparkle.queue.bus_access import BusAccess
from sparkle.queue.connection import Connection, ConnectionSettings, Envelope
from sparkle.queue.control import ControlFeed, HeartbeatSender
from sparkle.queue.delivery import Delivery
from sparkle.queue.handover import OfferDesk, Offers, Way
from sparkle.queue.key_values import KeyValues
from sparkle.queue.lease import Lease
from sparkle.queue.nkey import write_seed
from sparkle.queue.outgoing import JobPublisher
from sparkle.queue.puller import Puller
from sparkle.queue.replies import ReplyStream
from sparkle.queue.roles import Role
from sparkle.queue.status import read_classes
from sparkle.queue.topology import TopologySettings
from sparkle.queue.usage import require_meter, store_usage
from sparkle.queue.usage_streams import BUCKET, UsageSettings
from sparkle.schemas import subjects
from sparkle.schemas.answer import Channel, Chunk, Failure, FinishReason, Result, Usage
from sparkle.schemas.answered import Answered
from sparkle.schemas.control import Heartbeat, WorkerState
from sparkle.schemas.ids import new_job_id
from sparkle.schemas.job import Job
from sparkle.schemas.priority import PriorityClass
from sparkle.workers.slots import Slots
from tests.certificates import Authority
from tests.conftest import REGION, Eventually
from tests.engine_stand_in import token_of
from tests.guarded_bus import GuardedBus, guarded_bus
from tests.metering_rig import usage_record
from tests.worker_at_work import at_work

WHO = (
    (Role.OPERATOR, ""),
    (Role.WORKER, "w1"),
    (Role.WORKER, "w2"),
    (Role.PRODUCER, "acme"),
    (Role.PRODUCER, "other"),
    (Role.GATEWAY, ""),
    (Role.GATEWAY_METER, ""),
    (Role.OPERATOR_METER, ""),
)
JOB = new_job_id()


@pytest_asyncio.fixture
async def bus(nats_binary: None, tmp_path: Path) -> AsyncGenerator[GuardedBus]:
    """The bus, with the streams declared by its operator."""
    async with guarded_bus(tmp_path, WHO, region=REGION) as guarded:
        operator = await guarded.connect("operator")
        await topology.apply(operator, TopologySettings(regions=REGION))
        await operator.close()
        yield guarded


def result(job: str) -> Result:
    usage = Usage(prompt_tokens=1, completion_tokens=1, queue_s=0.0, first_token_s=0.0, total_s=0.0)
    return Result(
        job=job,
        attempt=1,
        worker="w1",
        text="x",
        tokens=[1],
        finish_reason=FinishReason.STOP,
        usage=usage,
    )


def chunk(job: str) -> Chunk:
    return Chunk(
        job=job,
        attempt=1,
        seq=0,
        first_index=0,
        tokens=[1],
        text="x",
        text_start=0,
        channel=Channel.ANSWER,
        worker="w1",
    )


async def test_each_can_do_its_part(
    bus: GuardedBus, eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    worker, acme, operator = [await bus.connect(user) for user in ("w1", "acme", "operator")]
    deliveries: asyncio.Queue[Delivery] = asyncio.Queue()
    chunks, ends = list[Chunk](), list[Result | Failure]()
    cancelled, conversations = list[str](), list[tuple[str, str]]()
    puller = Puller(worker, "local", lambda: 8, deliveries.put)
    pulling = asyncio.create_task(puller.run())
    replies, feed, publisher = ReplyStream(worker, "w1"), AnswerFeed(acme), JobPublisher(acme)
    await replies.start()
    control = ControlFeed(
        worker,
        REGION,
        "w1",
        on_cancel=lambda _, job: cancelled.append(job),
        on_conversation_end=lambda tenant, name: conversations.append((tenant, name)),
        on_drain=lambda: None,
    )
    await control.start()
    job = Job(prompt="x", tenant="acme", region="local")

    await feed.open("acme", job.id, chunks.append, ends.append)
    await publisher.publish(job, PriorityClass.P0, publication=1)
    lease = Lease(worker, await deliveries.get())
    assert not await replies.is_cancelled("acme", job.id)
    await publisher.cancel("acme", job.id)
    assert await replies.is_cancelled("acme", job.id)
    await publisher.end_conversation("acme", "c-1")
    records = AnswerRecords(worker)
    assert await records.ask("acme", job.id, 0) == Answered(job=job.id, attempt=0, tokens=[])
    told = Answered(job=job.id, attempt=1, tokens=[1])
    await records.store("acme", told)
    assert await records.stored("acme", job.id) == told
    await records.clear("acme", job.id)
    await replies.send("acme", chunk(job.id))
    await feed.ask_resend("w1", job.id, 1, 0)
    await eventually(lambda: len(chunks) == 2)
    assert await replies.store_end("acme", result(job.id))
    assert await replies.end_stored("acme", job.id)
    back = asyncio.Event()
    worker.on_reconnect(back.set)
    await worker.reconnect()
    await back.wait()
    assert await lease.ack()
    await eventually(lambda: ends and cancelled and conversations)
    assert conversations == [("acme", "c-1")]
    assert await feed.stored_end("acme", job.id) == result(job.id)
    beat = Heartbeat(
        worker="w1", region="local", state=WorkerState.READY, model="m", slots=1, running=[], sent_ms=1
    )
    await HeartbeatSender(worker, lambda: beat).send()
    assert [status.waiting for status in await read_classes(operator, "local")] == [0] * 5

    puller.stop()
    await pulling
    assert denials(caplog) == []
    for connection in (worker, acme, operator):
        await connection.close()


async def test_one_worker_can_hand_a_follow_up_to_another(bus: GuardedBus, eventually: Eventually) -> None:
    first, second, acme = [await bus.connect(user) for user in ("w1", "w2", "acme")]
    pulled: asyncio.Queue[Delivery] = asyncio.Queue()
    puller = Puller(first, "local", lambda: 8, pulled.put)
    pulling = asyncio.create_task(puller.run())
    delivered: list[Delivery] = []

    async def deliver(delivery: Delivery) -> None:
        delivered.append(delivery)

    await OfferDesk(second, "local", "w2", Slots(1, lambda: len(delivered)), deliver).start()
    # any answer of the server says that it knows the subscription
    assert not await ReplyStream(second, "w2").is_cancelled("acme", new_job_id())
    job = Job(prompt="x", tenant="acme", region="local")
    await JobPublisher(acme).publish(job, PriorityClass.P0, publication=1, home="w2")
    lease = Lease(first, await pulled.get())
    assert await Offers(first, "local", "w1").offer(lease) is Way.HANDED_OVER
    await eventually(lambda: delivered)
    assert await Lease(second, delivered[0]).ack()
    puller.stop()
    await pulling
    for connection in (first, second, acme):
        await connection.close()


@pytest.mark.parametrize("asks", ["acme", "gateway"])
async def test_a_whole_service_runs_on_it(
    bus: GuardedBus, caplog: pytest.LogCaptureFixture, asks: str
) -> None:
    access = bus.users[asks].access
    tenant = "acme" if asks == "acme" else "whose-gateway-it-is"
    settings = ClientSettings(nats=bus.url, region=REGION, tenant=tenant, bus=access)
    async with (
        at_work(bus.url, name="w1", bus=bus.users["w1"].access),
        await Client.open(settings) as client,
    ):
        handle = await client.submit(Job(prompt="hello", max_tokens=6))
        tokens = [token for chunk in [chunk async for chunk in handle] for token in chunk.tokens]
        assert tokens == (await handle.result()).tokens == [token_of(handle.job_id, at) for at in range(6)]
        endless = await client.submit(Job(prompt="pace_ms=5", max_tokens=4_000))
        await anext(endless)
        await endless.cancel()
        await client.end_conversation("c-1")
    assert denials(caplog) == []


async def test_the_meters_users_do_theirs_and_see_no_content(
    bus: GuardedBus, caplog: pytest.LogCaptureFixture
) -> None:
    operator, gateway, worker = [
        await bus.connect(user) for user in ("operator-meter", "gateway-meter", "w1")
    ]
    await usage_streams.declare(operator, UsageSettings())
    await require_meter(worker, REGION)
    book = TenantBook(KeyValues(operator, BUCKET))
    async with open_metering(gateway, MeteringSettings()) as access:
        key = await book.add(Tenant(name="acme", region=REGION, allowance_tokens=100), now_ms=0)
        # told, not read again
        while access.directory.named("acme") is None:  # noqa: ASYNC110 - nobody tells the test
            await asyncio.sleep(0.002)
        reserved = await access.reserve(await access.authenticate(key), {JOB: 60})
        await store_usage(worker, usage_record(JOB, 40))
        await reserved.ended(JOB, accepted=True)
        await access.settle()
    account = await AccountFile(operator, KeyValues(operator, BUCKET), "acme").count()
    assert [month.tokens for month in account.months.values()] == [40]
    assert denials(caplog) == []
    # the streams of content are not even there
    assert (await ask(operator, "STREAM.INFO.JOBS")).code == NO_STREAM
    for connection in (operator, gateway, worker):
        await connection.close()


def denials(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the server refused, in its words."""
    return [str(vars(one)["detail"]) for one in caplog.records if one.getMessage() == "queue_error"]


ANOTHER_REGION = subjects.JobAddress("eu", PriorityClass.P0, "acme", JOB).subject
ANOTHERS_JOB = subjects.JobAddress(REGION, PriorityClass.P0, "other", JOB).subject
EVERYONES = (
    # the forms of the API that name a subject in their body, where no permission sees it
    "$JS.API.DIRECT.GET.RESULTS",
    "$JS.API.DIRECT.GET.ANSWERED",
    "$JS.API.DIRECT.GET.JOBS",
    "$JS.API.STREAM.MSG.GET.RESULTS",
    "$JS.API.STREAM.MSG.GET.JOBS",
    # whatever brings messages to a place of one's choice, or takes them away
    "$JS.API.CONSUMER.CREATE.RESULTS",
    "$JS.API.CONSUMER.CREATE.RESULTS.mine",
    f"$JS.API.CONSUMER.CREATE.RESULTS.mine.{subjects.result('other', '*')}",
    "$JS.API.CONSUMER.DURABLE.CREATE.RESULTS.mine",
    "$JS.API.CONSUMER.DURABLE.CREATE.JOBS.local-p0",
    "$JS.API.CONSUMER.DELETE.JOBS.local-p0",
    "$JS.API.STREAM.CREATE.MINE",
    "$JS.API.STREAM.DELETE.JOBS",
    "$JS.API.STREAM.PURGE.JOBS",
    "$JS.API.STREAM.MSG.DELETE.JOBS",
    "$JS.API.STREAM.SNAPSHOT.RESULTS",
    "$SYS.REQ.ACCOUNT.PING.CONNZ",
)
A_PRODUCERS = (
    *EVERYONES,
    ANOTHER_REGION,
    subjects.result("acme", JOB),
    subjects.reply("acme", JOB),
    # what workers store is for workers
    subjects.answered("acme", JOB),
    f"$JS.API.DIRECT.GET.ANSWERED.{subjects.answered('acme', JOB)}",
    subjects.usage(REGION, "acme", JOB),
    subjects.heartbeat(REGION, "w1"),
    subjects.offer(REGION, "w1"),
    subjects.will(REGION, "w1"),
    subjects.drain(REGION, "w1"),
    subjects.bell(REGION, "p0"),
    "$JS.API.STREAM.INFO.JOBS",
    "$JS.API.STREAM.NAMES",
    "$JS.API.STREAM.UPDATE.RESULTS",
    "$JS.API.CONSUMER.CREATE.JOBS.local-p0",
    "$JS.API.CONSUMER.MSG.NEXT.JOBS.local-p0",
    "$JS.ACK.JOBS.local-p0.1.1.1.1.0",
    "_INBOX.anybodys",
)
MAY_NOT_SEND = {
    "acme": (
        *A_PRODUCERS,
        ANOTHERS_JOB,
        subjects.cancel("other", JOB),
        subjects.end_conversation("other", "c-1"),
        f"$JS.API.DIRECT.GET.RESULTS.{subjects.result('other', JOB)}",
        f"$JS.API.DIRECT.GET.CONTROL.{subjects.cancel('acme', JOB)}",
        "media.other.1",
    ),
    "gateway": (*A_PRODUCERS, "$KV.meter.account.acme"),
    "w1": (
        *EVERYONES,
        ANOTHERS_JOB,
        subjects.cancel("acme", JOB),
        subjects.end_conversation("acme", "c-1"),
        subjects.usage("eu", "acme", JOB),
        subjects.heartbeat(REGION, "w2"),
        subjects.heartbeat("eu", "w1"),
        subjects.offer("eu", "w1"),
        subjects.will("eu", "w1"),
        subjects.drain(REGION, "w2"),
        "$JS.API.STREAM.UPDATE.JOBS",
        "$JS.API.CONSUMER.CREATE.JOBS.local-p0",
        "$JS.API.CONSUMER.MSG.NEXT.JOBS.eu-p0",
        "$JS.ACK.JOBS.eu-p0.1.1.1.1.0",
    ),
    "operator": (
        *EVERYONES,
        ANOTHERS_JOB,
        subjects.drain("eu", "w1"),
        subjects.result("acme", JOB),
        subjects.reply("acme", JOB),
        subjects.cancel("acme", JOB),
        f"$JS.API.DIRECT.GET.RESULTS.{subjects.result('acme', JOB)}",
        f"$JS.API.DIRECT.GET.ANSWERED.{subjects.answered('acme', JOB)}",
        "$JS.API.CONSUMER.CREATE.RESULTS.mine",
        "$JS.API.CONSUMER.MSG.NEXT.JOBS.local-p0",
        "$JS.ACK.JOBS.local-p0.1.1.1.1.0",
    ),
    "gateway-meter": (ANOTHERS_JOB, "usage.local.acme.x", "$KV.meter.tenant.acme", "$JS.API.STREAM.CREATE.X"),
    "operator-meter": (ANOTHERS_JOB, "usage.local.acme.x", "$KV.other.x"),
}
ALL_OF_IT = (">", "_INBOX.>", "$JS.>", "jobs.>", "result.>", "usage.>", "media.>", "$SYS.>")
MAY_NOT_HEAR = {
    "acme": (
        *ALL_OF_IT,
        "reply.>",
        "reply.other.*",
        f"reply.*.{JOB}",
        "bell.>",
        "ctl.>",
        "hb.eu.*",
    ),
    "gateway": (*ALL_OF_IT, "reply.>", "bell.>", "ctl.>", "offer.>"),
    "w1": (
        *ALL_OF_IT,
        "reply.>",
        "reply.acme.*",
        "ctl.w2.resend",
        "ctl.>",
        "offer.local.*",
        "will.local.*",
        "drain.local.*",
        "drain.eu.w1",
        "hb.>",
        "bell.eu.*",
    ),
    "operator": (*ALL_OF_IT, "reply.>", "ctl.>", "offer.>", "bell.>"),
    "gateway-meter": (">", "usage.>", "$KV.>", "_INBOX.>"),
    "operator-meter": (">", "usage.>", "$KV.>", "_INBOX.>"),
}


@pytest.mark.parametrize("who", sorted(MAY_NOT_SEND))
async def test_nothing_else_is_sent_or_heard(
    bus: GuardedBus, caplog: pytest.LogCaptureFixture, who: str
) -> None:
    connection = await bus.connect(who)
    others = [user for name, user in bus.users.items() if name != who]
    inboxes = [user.inbox for user in others]
    # workers answer one another
    closed = [user.inbox for user in others if not user.group or user.group != bus.users[who].group]

    async def ignore(_: Envelope) -> None:
        return

    for subject in (*MAY_NOT_SEND[who], *(f"{inbox}.1" for inbox in closed)):
        caplog.clear()
        await connection.publish(subject, b"{}")
        assert await connection.echo(5.0)
        assert [said.lower() for said in denials(caplog)] == [
            f'nats: permissions violation for publish to "{subject}"'.lower()
        ]
    for subject in (*MAY_NOT_HEAR[who], *(f"{inbox}.>" for inbox in inboxes)):
        caplog.clear()
        await connection.subscribe(subject, ignore)
        assert await connection.echo(5.0)
        assert [said.lower() for said in denials(caplog)] == [
            f'nats: permissions violation for subscription to "{subject}"'.lower()
        ]
    await connection.close()


@pytest.mark.parametrize("who", sorted(MAY_NOT_SEND))
async def test_nobody_may_answer_wherever_he_says(
    bus: GuardedBus, caplog: pytest.LogCaptureFixture, who: str
) -> None:
    """With `allow_responses` a message to oneself, to be answered elsewhere, is leave to publish there."""
    connection = await bus.connect(who)
    came = asyncio.Event()

    async def take(_: Envelope) -> None:
        came.set()

    inbox = connection.new_inbox()
    await connection.subscribe(inbox, take)
    elsewhere = subjects.reply("victim", JOB) if who != "w1" else ANOTHERS_JOB
    await connection.publish(inbox, b"", reply=elsewhere)
    await came.wait()
    await connection.publish(elsewhere, b"forged")
    assert await connection.echo(5.0)
    assert [said.lower() for said in denials(caplog)] == [
        f'nats: permissions violation for publish to "{elsewhere}"'.lower()
    ]


async def test_a_tenant_cannot_have_the_server_write_to_anothers_subjects(
    bus: GuardedBus, eventually: Eventually
) -> None:
    """No permission sees where an acknowledgement or a stored message is to be sent."""
    acme, other, worker, operator = [await bus.connect(user) for user in ("acme", "other", "w1", "operator")]
    heard: list[Envelope] = []

    async def take(envelope: Envelope) -> None:
        heard.append(envelope)

    await other.subscribe(subjects.reply("other", "*"), take)
    assert await other.echo(5.0)
    mine = new_job_id()
    await ReplyStream(worker, "w1").store_end("acme", result(mine))
    others = (
        ANOTHERS_JOB,
        subjects.result("other", JOB),
        subjects.cancel("other", JOB),
        subjects.reply("other", JOB),
        bus.users["other"].inbox + ".1",
        "$JS.API.STREAM.DELETE.JOBS",
    )
    for elsewhere in others:
        address = subjects.JobAddress(REGION, PriorityClass.P0, "acme", new_job_id())
        await acme.publish(address.subject, b"x", reply=elsewhere)
        get = f"$JS.API.DIRECT.GET.RESULTS.{subjects.result('acme', mine)}"
        await acme.publish(get, b"", reply=elsewhere)
    # answered after all of them
    assert await acme.last_stored("RESULTS", subjects.result("acme", mine)) is not None
    assert await acme.echo(5.0)
    assert await other.echo(5.0)
    assert heard == []
    jobs, results, control, _ = (await topology.show(operator)).streams
    assert (jobs.messages, results.messages, control.messages) == (len(others), 1, 0)
    assert await other.last_stored("RESULTS", subjects.result("other", JOB)) is None


async def test_whoever_shows_no_certificate_or_no_key_of_the_bus_is_turned_away(
    bus: GuardedBus, tmp_path: Path
) -> None:
    acme, stranger = bus.users["acme"].access, tmp_path / "stranger.seed"
    write_seed(stranger)
    strangers = Authority(tmp_path, "strangers")
    cert_file, key_file = strangers.sign("stranger")
    turned_away = {
        "CERTIFICATE_REQUIRED": BusAccess(seed_file=acme.seed_file, ca_file=acme.ca_file),
        "UNKNOWN_CA": replace(acme, cert_file=cert_file, key_file=key_file),
        "CERTIFICATE_VERIFY_FAILED": replace(acme, ca_file=strangers.file),
        "'Authorization Violation'": replace(acme, seed_file=None),
        "Authorization Violation": replace(acme, seed_file=stranger),
        # the server waits for a greeting that never comes
        "TimeoutError": BusAccess(seed_file=acme.seed_file),
    }

    async def is_turned_away(reason: str, access: BusAccess) -> None:
        with pytest.raises(NotConnected, match=reason):
            await bus.connect("acme", access)

    await asyncio.gather(*(is_turned_away(reason, access) for reason, access in turned_away.items()))
    connection = await bus.connect("acme")
    await connection.close()


async def test_with_an_authority_named_nothing_is_said_without_tls(bus: GuardedBus) -> None:
    """A server that says it needs no TLS, as one in between would, hears neither name nor key."""
    heard = bytearray()

    async def in_between(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"server_id":"x","max_payload":1048576,"nonce":"abc"}\r\n')
        heard.extend(await reader.read(65_536))
        writer.close()

    server = await asyncio.start_server(in_between, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    settings = ConnectionSettings(
        url=f"nats://127.0.0.1:{port}", access=bus.users["acme"].access, connect_timeout_s=1.0
    )
    with pytest.raises(NotConnected):
        await Connection.open(settings)
    server.close()
    await server.wait_closed()
    handshake = 0x16
    assert heard[0] == handshake
    assert b"CONNECT" not in heard
