"""No content in any log line, header, error or file, whatever goes right or wrong with a job."""

from __future__ import annotations

import asyncio
import logging
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparkle.errors import MessageTooLarge, SparkleError
from sparkle.queue import topology
from sparkle.queue.answers import AnswerFeed
from sparkle.queue.connection import Connection, ConnectionSettings, Envelope
from sparkle.queue.delivery import Delivery
from sparkle.queue.lease import Lease
from sparkle.queue.local import LocalServer
from sparkle.queue.outgoing import JobPublisher
from sparkle.queue.puller import Puller
from sparkle.queue.replies import ReplyStream
from sparkle.queue.topology import TopologySettings
from sparkle.schemas import subjects
from sparkle.schemas.answer import Channel, Chunk, Failure, FinishReason, Result, Usage
from sparkle.schemas.ids import new_job_id
from sparkle.schemas.job import Job
from sparkle.schemas.priority import PriorityClass
from tests.conftest import Eventually

CANARY = "canary-7f3a91"


def files_with_canary(folder: Path) -> list[Path]:
    """Files below `folder` that hold the canary's bytes."""
    found = [path for path in folder.rglob("*") if path.is_file()]
    return [path for path in found if CANARY.encode() in path.read_bytes()]


@pytest.fixture
def folder(nats_binary: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the server of this test keeps its files."""
    made = Path(tempfile.mkdtemp())
    monkeypatch.setattr(tempfile, "tempdir", str(made))
    yield made
    shutil.rmtree(made)


async def test_content_is_in_messages_only(
    folder: Path, eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    headers: list[str] = []
    errors: list[SparkleError] = []

    async def note(envelope: Envelope) -> None:
        headers.append(f"{envelope.subject} {dict(envelope.headers)} {envelope.reply}")

    async def fail(envelope: Envelope) -> None:
        raise ValueError(envelope.payload.decode(errors="replace"))

    async with LocalServer() as server:
        connection = await Connection.open(ConnectionSettings(url=server.url))
        await topology.apply(connection, TopologySettings(regions="local"))
        await connection.subscribe(">", note)
        await connection.subscribe("jobs.>", fail)
        await one_job(connection, eventually)
        publisher = JobPublisher(connection)
        with pytest.raises(MessageTooLarge) as too_large:
            await publisher.publish(job(CANARY + "é" * 4_200_000), PriorityClass.P4, publication=1)
        errors.append(too_large.value)
        await connection.publish(subjects.reply("acme", new_job_id()), CANARY.encode())
        assert await connection.echo(5.0)
        assert files_with_canary(folder) == []
        await connection.close()

    assert len(headers) > 5
    assert CANARY not in "".join(headers)
    assert "handler_failed" in caplog.text
    assert CANARY not in caplog.text
    assert CANARY not in "".join(str(vars(record)) for record in caplog.records)
    assert CANARY not in "".join(map(str, errors))


def job(prompt: str) -> Job:
    return Job(prompt=prompt, tenant="acme", region="local")


async def one_job(connection: Connection, eventually: Eventually) -> None:
    """Published, handed back, leased again, answered, stored, acknowledged."""
    wanted, ends = job(CANARY), list[Result | Failure]()
    deliveries: asyncio.Queue[Delivery] = asyncio.Queue()
    puller = Puller(connection, "local", lambda: 8, deliveries.put)
    pulling = asyncio.create_task(puller.run())
    replies, feed = ReplyStream(connection, "w1"), AnswerFeed(connection)
    await feed.open("acme", wanted.id, lambda _: None, ends.append)
    await JobPublisher(connection).publish(wanted, PriorityClass.P0, publication=1)
    await Lease(connection, await deliveries.get()).nak()
    lease = Lease(connection, await deliveries.get())
    await replies.send(
        "acme",
        Chunk(
            job=wanted.id,
            attempt=2,
            seq=0,
            first_index=0,
            tokens=[1],
            text=CANARY,
            text_start=0,
            channel=Channel.ANSWER,
            worker="w1",
        ),
    )
    usage = Usage(prompt_tokens=1, completion_tokens=1, queue_s=0.0, first_token_s=0.0, total_s=0.0)
    result = Result(
        job=wanted.id,
        attempt=2,
        worker="w1",
        text=CANARY,
        tokens=[1],
        finish_reason=FinishReason.STOP,
        usage=usage,
    )
    await replies.store_end("acme", result)
    await lease.ack()
    await eventually(lambda: ends)
    puller.stop()
    await pulling
