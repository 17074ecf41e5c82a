"""With users that may do only their part, all of it works, and nothing else does.

The lists here are the least that a worker and a producer need; an operator's server can copy them.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable

import pytest
import pytest_asyncio

from sparkle.errors import NotConnected, PublishUncertain
from sparkle.queue import topology
from sparkle.queue.answers import AnswerFeed
from sparkle.queue.connection import Connection, ConnectionSettings
from sparkle.queue.control import ControlFeed, HeartbeatSender
from sparkle.queue.delivery import Delivery
from sparkle.queue.handover import OfferDesk, Offers, Way
from sparkle.queue.lease import Lease
from sparkle.queue.local import LocalServer
from sparkle.queue.outgoing import JobPublisher, PublishSettings
from sparkle.queue.puller import Puller
from sparkle.queue.replies import ReplyStream
from sparkle.queue.status import read_classes
from sparkle.queue.topology import TopologySettings
from sparkle.schemas import subjects
from sparkle.schemas.answer import Channel, Chunk, Failure, FinishReason, Result, Usage
from sparkle.schemas.codec import encode
from sparkle.schemas.control import Heartbeat, Offer, WorkerState
from sparkle.schemas.ids import new_job_id
from sparkle.schemas.job import Job
from sparkle.schemas.priority import PriorityClass
from sparkle.workers.slots import Slots
from tests.conftest import Eventually

IMPATIENT = PublishSettings(answer_timeout_s=0.1, give_up_s=0.1)


def worker_permissions(worker: str) -> dict[str, object]:
    """The least that the worker of this name needs."""
    return {
        "publish": [
            "$JS.API.CONSUMER.MSG.NEXT.JOBS.*",
            "$JS.ACK.JOBS.>",
            # whether the account can write anything to a disk
            "$JS.API.INFO",
            # after a lost connection: whether the stream is still the one that a lease is of
            "$JS.API.STREAM.INFO.JOBS",
            "$JS.API.DIRECT.GET.RESULTS.result.>",
            "$JS.API.DIRECT.GET.CONTROL.ctl.cancel.>",
            "reply.>",
            "result.>",
            "usage.local.>",
            f"hb.local.{worker}",
            # never wider: what goes to another region's worker leaves the region
            "offer.local.*",
        ],
        "subscribe": [
            f"_INBOX_{worker}.>",
            "bell.local.*",
            "ctl.cancel.>",
            "ctl.end.>",
            f"ctl.{worker}.>",
            f"offer.local.{worker}",
        ],
        # an offer's answer goes to another worker's inbox
        "allow_responses": True,
    }


PERMISSIONS = {
    "ops": {"publish": [">"], "subscribe": [">"]},
    "w1": worker_permissions("w1"),
    "w2": worker_permissions("w2"),
    "acme": {
        "publish": [
            "jobs.local.*.acme.*",
            "ctl.cancel.acme.*",
            "ctl.end.acme.*",
            "ctl.*.resend",
            "$JS.API.DIRECT.GET.RESULTS.result.acme.*",
        ],
        "subscribe": ["_INBOX_acme.>", "reply.acme.*", "hb.local.*"],
    },
}


class GuardedServer(LocalServer):
    """A server of our own where each user may do only what PERMISSIONS say."""

    def _config(self) -> str:
        users = [
            {"user": user, "password": user, "permissions": permissions}
            for user, permissions in PERMISSIONS.items()
        ]
        config = super()._config().replace('no_auth_user: "local"', "")
        before, _, after = config.partition('users: [ { user: "local"')
        return f"{before}users: {json.dumps(users)}\n{after.partition(chr(10))[2]}"


@pytest_asyncio.fixture
async def server(nats_binary: None) -> AsyncGenerator[GuardedServer]:
    """A guarded server with the streams declared by its operator."""
    async with GuardedServer() as guarded:
        ops = await open_as("ops", guarded)
        await topology.apply(ops, TopologySettings(regions="local"))
        await ops.close()
        yield guarded


async def open_as(user: str, server: LocalServer) -> Connection:
    url = server.url.replace("nats://", f"nats://{user}:{user}@")
    return await Connection.open(
        ConnectionSettings(url=url, inbox_prefix=f"_INBOX_{user}", request_timeout_s=0.2)
    )


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
    server: GuardedServer, eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    worker, acme, ops = [await open_as(user, server) for user in ("w1", "acme", "ops")]
    deliveries: asyncio.Queue[Delivery] = asyncio.Queue()
    chunks, ends = list[Chunk](), list[Result | Failure]()
    cancelled, conversations = list[str](), list[tuple[str, str]]()
    puller = Puller(worker, "local", lambda: 8, deliveries.put)
    pulling = asyncio.create_task(puller.run())
    replies, feed, publisher = ReplyStream(worker, "w1"), AnswerFeed(acme), JobPublisher(acme)
    await replies.start()
    control = ControlFeed(
        worker,
        on_cancel=lambda _, job: cancelled.append(job),
        on_conversation_end=lambda tenant, name: conversations.append((tenant, name)),
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
    assert [status.waiting for status in await read_classes(ops, "local")] == [0] * 5

    puller.stop()
    await pulling
    denied = [record for record in caplog.records if record.getMessage() == "queue_error"]
    # only the watchdog's echo, which then counts for nothing
    assert {"_INBOX" in vars(record)["detail"].upper() for record in denied} <= {True}
    for connection in (worker, acme, ops):
        await connection.close()


@pytest.mark.parametrize("user", ["w1", "acme"])
async def test_neither_worker_nor_producer_can_declare_streams(server: GuardedServer, user: str) -> None:
    connection = await open_as(user, server)
    with pytest.raises(NotConnected, match="the user may not ask"):
        await topology.apply(connection, TopologySettings(regions="local"))
    await connection.close()


async def test_one_worker_can_hand_a_follow_up_to_another(
    server: GuardedServer, eventually: Eventually
) -> None:
    first, second, acme = [await open_as(user, server) for user in ("w1", "w2", "acme")]
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


async def offer_a_job(connection: Connection) -> None:
    offer = Offer(job=new_job_id(), priority=PriorityClass.P0, wait_ms=0)
    await connection.request(subjects.offer("local", "w1"), encode(offer))


async def read_a_result(connection: Connection) -> None:
    await AnswerFeed(connection).stored_end("other", new_job_id())


async def cancel_a_job(connection: Connection) -> None:
    await JobPublisher(connection, IMPATIENT).cancel("other", new_job_id())


async def publish_a_job(connection: Connection) -> None:
    job = Job(prompt="x", tenant="other", region="local")
    await JobPublisher(connection, IMPATIENT).publish(job, PriorityClass.P0, publication=1)


@pytest.mark.parametrize("act", [read_a_result, cancel_a_job, publish_a_job, offer_a_job])
async def test_a_tenant_has_no_part_in_anothers(
    server: GuardedServer, act: Callable[[Connection], Awaitable[None]]
) -> None:
    connection = await open_as("acme", server)
    with pytest.raises(PublishUncertain, match="no answer in time"):
        await act(connection)
    await connection.close()
