"""A hostile producer at the wire, and a worker that survives it: one end a job, an empty queue.

The messages are written to the socket as they are, since a client library would not send most of them.
"""

from __future__ import annotations

import asyncio
import logging
import random

import pytest

from sparkle.errors import FailureCode
from sparkle.queue.connection import Connection
from sparkle.queue.local import LocalServer
from sparkle.schemas import subjects
from sparkle.schemas.answer import Failure
from sparkle.schemas.codec import encode
from sparkle.schemas.control import Cancel
from sparkle.schemas.ids import new_job_id
from sparkle.schemas.priority import PriorityClass
from sparkle.schemas.subjects import JobAddress
from tests.engine_stand_in import StandInEngine
from tests.hostile_messages import CANARY, HostileProducer
from tests.worker_at_work import REGION, TENANT, Producer, Watched, at_work, make_job

NUM_MESSAGES = 300
SUBJECT = b"jobs.local.p0.acme."
STRANGE_TOKENS = (
    b"\xff\xfe",
    # white space to some readers, but not to the server
    b"a\x0bb",
    b"a\x0cb",
    b"a\x0b7",
    b"\xc2\x85",
    b"\x00",
    b"*",
    b"x" * 3000,
)
STRANGE_HEADERS = (
    b"",
    b"NATS/1.0",
    b"NATS/1.0\r\n\r\n",
    b"NATS/1.0 404 No Messages\r\n\r\n",
    b"NATS/1.0 \xff\xff\xff\r\n\r\n",
    b"NATS/1.0 503 \xff\xff\r\n\xff: \xff\r\n\r\n",
    b"NATS/1.0\r\nno colon\r\n\xff\xfe: \xff\r\n: \r\n\r\n",
    b"NATS/1.0\r\n" + b"a: b\r\n" * 9_000 + b"\r\n",
    b"nothing of the kind",
)
HELLO = b'CONNECT {"verbose":false,"headers":true,"no_responders":true}\r\n'


async def send(server: LocalServer, subject: bytes, payload: bytes, headers: bytes | None = None) -> None:
    """Publish bytes by hand; returns when the server has taken them."""
    host, _, port = server.url.removeprefix("nats://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    if headers is None:
        line = b"PUB %b %d" % (subject, len(payload))
    else:
        line = b"HPUB %b %d %d" % (subject, len(headers), len(headers) + len(payload))
    writer.write(HELLO + line + b"\r\n" + (headers or b"") + payload + b"\r\nPING\r\n")
    try:
        async with asyncio.timeout(5.0):
            await reader.readuntil(b"PONG\r\n")
    finally:
        writer.close()
        await writer.wait_closed()


@pytest.mark.parametrize("headers", [None, b"NATS/1.0\r\na: b\r\n\r\n"], ids=["bare", "headers"])
async def test_a_job_under_any_subject_leaves_the_queue(
    headers: bytes | None, connection: Connection, nats_server: LocalServer
) -> None:
    producer = Producer(connection)
    async with at_work(nats_server.url):
        for token in STRANGE_TOKENS:
            await send(nats_server, SUBJECT + token, encode(make_job()), headers)
        # the worker hears bells and jobs, and goes on with the same connection
        assert (await (await producer.submit(make_job())).result()).attempt == 1
        await producer.until_empty()


async def test_a_job_with_any_headers_is_answered_once(
    connection: Connection, nats_server: LocalServer
) -> None:
    producer = Producer(connection)
    jobs = [make_job() for _ in STRANGE_HEADERS]
    async with at_work(nats_server.url):
        watched = [await producer.watch(job) for job in jobs]
        for job, headers in zip(jobs, STRANGE_HEADERS, strict=True):
            await send(nats_server, SUBJECT + job.id.encode(), encode(job), headers)
        assert [(await watch.result()).attempt for watch in watched] == [1] * len(jobs)
        await producer.until_empty()


async def test_a_tombstone_that_looks_like_the_servers_word_is_read_all_the_same(
    connection: Connection, nats_server: LocalServer
) -> None:
    producer = Producer(connection)
    cancelled: list[Watched] = []
    for status in ("503", "404", "408", "409", "100"):
        job = make_job()
        tombstone, headers = encode(Cancel(job=job.id)), {"Status": status, "Description": "No Responders"}
        await connection.publish_stored(subjects.cancel(TENANT, job.id), tombstone, headers=headers)
        cancelled.append(await producer.submit(job))
    async with at_work(nats_server.url):
        for watched in cancelled:
            assert (await watched.failure()).code is FailureCode.CANCELLED
        await producer.until_empty()


async def test_every_hostile_message_gets_one_end_and_none_of_it_comes_out(
    connection: Connection, nats_server: LocalServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    producer = Producer(connection)
    hostile = HostileProducer(2, tenant=TENANT, region=REGION)
    draw = random.Random(3)
    jobs = [make_job(id=new_job_id()) for _ in range(NUM_MESSAGES)]
    async with at_work(nats_server.url, engine=StandInEngine(slots=4)):
        watched = [await producer.watch(job) for job in jobs]
        for job in jobs:
            address = JobAddress(REGION, draw.choice(list(PriorityClass)), TENANT, job.id)
            await connection.publish_stored(address.subject, hostile.message(job.id), headers={})
        ends = [await watch.end() for watch in watched]
        await producer.until_empty()
        assert (await (await producer.submit(make_job())).result()).attempt == 1
    failures = [end for end in ends if isinstance(end, Failure)]
    codes = {failure.code for failure in failures}
    assert codes == {FailureCode.INVALID_JOB, FailureCode.UNSUPPORTED, FailureCode.DEADLINE_EXCEEDED}
    assert NUM_MESSAGES // 2 < len(failures) < NUM_MESSAGES
    assert all(len(watch.ends) == 1 and watch.ends[0].job == watch.job.id for watch in watched)
    assert not [failure for failure in failures if CANARY in failure.message]
    assert CANARY not in caplog.text
    assert not [record for record in caplog.records if CANARY in str(vars(record))]
