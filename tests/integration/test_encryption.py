"""Jobs sealed end to end, over a real server: the bus carries ciphertext, and nothing else is believed."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import sparkle
from sparkle.errors import ConfigError, FailureCode, UnknownKey
from sparkle.producers.client import Client
from sparkle.producers.settings import ClientSettings
from sparkle.queue.answered import AnswerRecords
from sparkle.queue.answers import AnswerFeed
from sparkle.queue.connection import Connection, Envelope
from sparkle.queue.delivery import Delivery
from sparkle.queue.job_seals import JobSeals
from sparkle.queue.key_ring import EncryptionSettings, KeyRing
from sparkle.queue.local import LocalServer
from sparkle.queue.outgoing import JobPublisher
from sparkle.schemas import subjects
from sparkle.schemas.answer import Chunk, Failure, Result
from sparkle.schemas.answered import Answered
from sparkle.schemas.codec import encode
from sparkle.schemas.job import Job
from sparkle.schemas.priority import PriorityClass
from tests.conftest import Eventually
from tests.engine_stand_in import text_of
from tests.key_files import key_file
from tests.worker_at_work import REGION, TENANT, WAIT_S, Producer, Watched, at_work, make_job, tokens_of

CANARY = "canary-e5d0"


def encryption(folder: Path, name: str = "keys", **ids: list[str]) -> EncryptionSettings:
    """Settings with a file of these keys."""
    return EncryptionSettings(keys_file=key_file(folder / name, ids or {TENANT: ["k1"]}))


@asynccontextmanager
async def client_of(server: LocalServer, keys: EncryptionSettings | None) -> AsyncGenerator[Client]:
    settings = ClientSettings(
        nats=server.url, region=REGION, tenant=TENANT, encryption=keys or EncryptionSettings()
    )
    async with await Client.open(settings) as client:
        yield client


async def ended(client: Client, job: Job) -> Result:
    async with asyncio.timeout(WAIT_S):
        return await (await client.submit(job)).result()


async def failed(client: Client, job: Job) -> sparkle.JobFailed:
    with pytest.raises(sparkle.JobFailed) as caught:
        await ended(client, job)
    return caught.value


async def test_the_bus_carries_ciphertext_only_both_ways(
    connection: Connection, nats_server: LocalServer, tmp_path: Path
) -> None:
    heard: list[Envelope] = []

    async def hear(envelope: Envelope) -> None:
        heard.append(envelope)

    for subject in ("reply.>", "result.>"):
        await connection.subscribe(subject, hear)
    job = make_job(f"{CANARY} think=2", max_tokens=9)
    async with client_of(nats_server, encryption(tmp_path)) as client:
        handle = await client.submit(job)
        stored = await connection.request(
            f"$JS.API.STREAM.MSG.GET.{subjects.JOBS_STREAM}",
            f'{{"last_by_subj": "jobs.{REGION}.*.{TENANT}.{job.id}"}}'.encode(),
        )
        async with at_work(nats_server.url, encryption=encryption(tmp_path)):
            assert [token async for chunk in handle for token in chunk.tokens] == tokens_of(job)
            result = await handle.result()
    assert result.text == "".join(text_of(job.id, index) for index in range(2, 9))
    queued = base64.b64decode(json.loads(stored.payload)["message"]["data"])
    assert len(queued) > 100
    assert len(heard) > 2
    assert {envelope.headers[subjects.KEY_HEADER] for envelope in heard} == {"k1"}
    for plain in (CANARY, result.text, job.id, "tokens"):
        assert not [envelope for envelope in heard if plain.encode() in envelope.payload]
        assert plain.encode() not in queued


async def test_a_lost_chunk_is_sent_again_as_it_was(
    connection: Connection, nats_server: LocalServer, tmp_path: Path, eventually: Eventually
) -> None:
    keys = encryption(tmp_path)
    ring = keys.ring()
    assert ring is not None
    feed, job = AnswerFeed(connection), make_job(max_tokens=5)
    chunks: list[Chunk] = []
    ends: list[Result | Failure] = []
    await feed.open(TENANT, job.id, chunks.append, ends.append, ring.newest(TENANT))
    async with at_work(nats_server.url, encryption=keys, name="w-1", chunk_window_ms=0.0):
        await JobPublisher(connection).publish(job, PriorityClass.P0, publication=1, key=ring.newest(TENANT))
        await eventually(lambda: ends)
        first = list(chunks)
        chunks.clear()
        await feed.ask_resend("w-1", job.id, 1, 2)
        await eventually(lambda: chunks == first[2:])
    assert await feed.stored_end(TENANT, job.id, ring.newest(TENANT)) == ends[0]
    with pytest.raises(UnknownKey):
        await feed.stored_end(TENANT, job.id)


async def test_what_a_worker_is_told_of_an_answer_is_ciphertext_and_gone_on_with(
    connection: Connection, nats_server: LocalServer, tmp_path: Path, eventually: Eventually
) -> None:
    keys = encryption(tmp_path)
    heard: list[Envelope] = []

    async def hear(envelope: Envelope) -> None:
        heard.append(envelope)

    job = make_job("pace_ms=20", max_tokens=30)
    async with client_of(nats_server, keys) as client:
        for subject in ("_INBOX.>", "told.>"):
            await connection.subscribe(subject, hear)
        handle = await client.submit(job)
        async with at_work(nats_server.url, encryption=keys) as first:
            read = list((await anext(handle)).tokens)
            first.life.interrupt()
            first.life.interrupt()
            await first.end()
        async with at_work(nats_server.url, encryption=keys):
            async for chunk in handle:
                read += chunk.tokens
            result = await handle.result()
    assert read == result.tokens == tokens_of(job)
    assert result.attempt == 2
    sealed = [envelope for envelope in heard if envelope.headers.get(subjects.KEY_HEADER) == "k1"]
    # two deliveries of the job, and what its producer had of the answer
    assert sorted(envelope.subject.partition(".")[0] for envelope in sealed) == ["jobs", "jobs", "told"]
    assert not [envelope for envelope in heard if b"tokens" in envelope.payload]


async def test_how_far_an_answer_has_come_is_stored_as_ciphertext(
    connection: Connection, tmp_path: Path
) -> None:
    ring = encryption(tmp_path).ring()
    assert ring is not None
    job = make_job()
    address = subjects.JobAddress(REGION, PriorityClass.P0, TENANT, job.id)
    key = ring.newest(TENANT)
    assert key is not None
    sealed = key.seal(address.subject, encode(job))
    delivery = Delivery(
        subject=address.subject,
        payload=sealed,
        headers=key.headers,
        ack_subject="",
        attempt=1,
        stored_s=0.0,
        pending=0,
    )
    seals, told = JobSeals(ring), Answered(job=job.id, attempt=1, tokens=[7, 8])
    seals.open(delivery, address)
    records = AnswerRecords(connection, seals)
    await records.store(TENANT, told)
    raw = await connection.last_stored(subjects.ANSWERED_STREAM, subjects.answered(TENANT, job.id))
    assert raw is not None
    assert b"tokens" not in raw
    assert await records.stored(TENANT, job.id) == told
    # in the clear, or for another job, it is not believed
    await AnswerRecords(connection).store(TENANT, told)
    assert await records.stored(TENANT, job.id) is None


async def test_a_worker_that_requires_it_refuses_the_clear_and_another_serves_both(
    connection: Connection, nats_server: LocalServer, tmp_path: Path
) -> None:
    keys = encryption(tmp_path)
    required = EncryptionSettings(keys_file=keys.keys_file, required=True)
    async with client_of(nats_server, None) as plain, client_of(nats_server, keys) as sealed:
        async with at_work(nats_server.url, encryption=required):
            error = await failed(plain, make_job())
            assert (error.code, error.retryable) == (FailureCode.ENCRYPTION_REQUIRED, False)
            assert (await ended(sealed, job := make_job())).tokens == tokens_of(job)
        async with at_work(nats_server.url, encryption=keys):
            assert (await ended(plain, job := make_job())).tokens == tokens_of(job)
            assert (await ended(sealed, job := make_job())).tokens == tokens_of(job)


async def test_a_worker_without_the_key_says_so(
    connection: Connection, nats_server: LocalServer, tmp_path: Path
) -> None:
    others = encryption(tmp_path, "others", acme=["k2"], other=["k1"])
    async with client_of(nats_server, encryption(tmp_path)) as client:
        async with at_work(nats_server.url):
            error = await failed(client, make_job())
            assert (error.code, error.retryable) == (FailureCode.UNKNOWN_KEY, False)
            assert "give it a keys_file" in str(error)
        async with at_work(nats_server.url, encryption=others):
            assert "none of the 1 keys of tenant acme" in str(await failed(client, make_job()))
        await Producer(connection).until_empty()


async def test_what_was_changed_or_moved_is_not_run(
    connection: Connection, nats_server: LocalServer, tmp_path: Path
) -> None:
    keys = encryption(tmp_path)
    key = _ring(keys).newest(TENANT)
    producer = Producer(connection)
    async with at_work(nats_server.url, encryption=keys):
        for change in ("a bit", "another job's", "another class's", "its key's id", "noise"):
            job, other = make_job(CANARY), make_job(CANARY)
            place = subjects.JobAddress(REGION, PriorityClass.P0, TENANT, job.id).subject
            payload = key.seal(place, encode(job))
            match change:
                case "a bit":
                    payload = payload[:-1] + bytes([payload[-1] ^ 1])
                case "another job's":
                    payload = key.seal(place.replace(job.id, other.id), encode(other))
                case "another class's":
                    payload = key.seal(place.replace(".p0.", ".p1."), encode(job))
                case "noise":
                    payload = b"noise"
                case _:
                    pass
            watched = await producer.watch(job)
            key_id = "k\N{LATIN SMALL LETTER E WITH ACUTE}" if change == "its key's id" else key.id
            await connection.publish_stored(place, payload, headers={subjects.KEY_HEADER: key_id})
            failure = await watched.failure()
            wanted = FailureCode.UNKNOWN_KEY if change == "its key's id" else FailureCode.NOT_AUTHENTIC
            assert (failure.code, failure.retryable) == (wanted, False), change
            assert CANARY not in failure.message
        await producer.until_empty()


async def test_a_client_with_keys_believes_no_answer_in_the_clear_or_under_another_key(
    connection: Connection, nats_server: LocalServer, tmp_path: Path, eventually: Eventually
) -> None:
    key = _ring(encryption(tmp_path)).newest(TENANT)
    forged = _ring(encryption(tmp_path, "forged", other=["k1"])).newest("other")
    real = await _answered(connection, nats_server)
    feed, job = AnswerFeed(connection), real.job
    chunks: list[Chunk] = []
    ends: list[Result | Failure] = []
    await feed.open(TENANT, job.id, chunks.append, ends.append, key)
    place, chunk = subjects.reply(TENANT, job.id), encode(real.chunks[0])
    elsewhere = key.seal(subjects.reply(TENANT, make_job().id), chunk)
    sealed = key.headers
    for payload, headers in (
        (chunk, {}),
        (encode(real.ends[0]), {}),
        (forged.seal(place, chunk), sealed),
        (elsewhere, sealed),
        (elsewhere, {**sealed, "Nats-Subject": subjects.reply(TENANT, make_job().id)}),
        (key.seal(place, chunk), {subjects.KEY_HEADER: "k2"}),
    ):
        await connection.publish(place, payload, headers=headers)
    await connection.publish(place, key.seal(place, chunk), headers=sealed)
    await eventually(lambda: chunks)
    assert (chunks, ends) == (real.chunks[:1], [])


async def test_keys_change_without_a_gap(
    connection: Connection, nats_server: LocalServer, tmp_path: Path
) -> None:
    keys = encryption(tmp_path)
    assert keys.keys_file is not None
    async with at_work(nats_server.url, encryption=keys):
        async with client_of(nats_server, keys) as client:
            assert (await ended(client, job := make_job())).tokens == tokens_of(job)
        # workers first: the running one has read the file a while ago
        key_file(keys.keys_file, {TENANT: ["k1", "k2"]})
        newer = encryption(tmp_path, "newer", acme=["k2"])
        async with client_of(nats_server, newer) as client, asyncio.timeout(WAIT_S):
            while await _is_refused(client):
                pass
            assert (await ended(client, job := make_job())).tokens == tokens_of(job)


async def test_a_client_whose_tenant_has_no_key_sends_nothing(
    connection: Connection, nats_server: LocalServer, tmp_path: Path
) -> None:
    keys_file = key_file(tmp_path / "keys", {"other": ["k1"]})
    async with sparkle.connect(nats_server.url, region=REGION, tenant=TENANT, keys_file=keys_file) as client:
        with pytest.raises(UnknownKey, match="no key of tenant acme"):
            await client.submit(make_job())
    assert await Producer(connection).num_left() == 0
    with pytest.raises(ConfigError, match="cannot be read"):
        await sparkle.connect(nats_server.url, region=REGION, keys_file=tmp_path / "none")


async def _is_refused(client: Client) -> bool:
    """Whether the worker does not know the key yet."""
    try:
        await ended(client, make_job())
    except sparkle.JobFailed as error:
        return error.code is FailureCode.UNKNOWN_KEY
    return False


async def _answered(connection: Connection, server: LocalServer) -> Watched:
    """A job, its chunks and its end, all in the clear."""
    async with at_work(server.url):
        watched = await Producer(connection).submit(make_job())
        await watched.result()
    return watched


def _ring(settings: EncryptionSettings) -> KeyRing:
    ring = settings.ring()
    assert ring is not None
    return ring
