"""Publishing jobs to a real server: once, twice, too many, too large, with no stream, with no server."""

from __future__ import annotations

import asyncio

import pytest

from sparkle.errors import (
    InvalidMessage,
    MessageTooLarge,
    NotConnected,
    PublishUncertain,
    QueueFull,
    TopologyMissing,
)
from sparkle.queue import topology
from sparkle.queue.api import as_table, ask
from sparkle.queue.connection import Connection, Envelope
from sparkle.queue.local import LocalServer
from sparkle.queue.outgoing import JobPublisher, Publication, PublishSettings
from sparkle.queue.topology import TopologySettings
from sparkle.schemas import subjects
from sparkle.schemas.job import Job
from sparkle.schemas.priority import PriorityClass

P0, P1, P2, P3, P4 = PriorityClass


def new_job(prompt: str = "x", *, region: str = "local") -> Job:
    return Job(prompt=prompt, tenant="acme", region=region)


async def queued(connection: Connection) -> list[str]:
    """The classes of the jobs in the stream, one entry a job; a consumer's own count comes a little later."""
    info = await ask(connection, "STREAM.INFO.JOBS", {"subjects_filter": "jobs.>"})
    return sorted(subject.split(".")[2] for subject in as_table(info.table("state").get("subjects")))


async def test_the_same_publication_twice_is_stored_once(connection: Connection) -> None:
    publisher, job = JobPublisher(connection), new_job()
    outcomes = await asyncio.gather(*(publisher.publish(job, P1, publication=1) for _ in range(20)))
    assert sorted(outcomes) == [*[Publication.ALREADY_QUEUED] * 19, Publication.STORED]
    assert await queued(connection) == [P1]


async def test_another_publication_of_a_queued_job_adds_nothing(connection: Connection) -> None:
    publisher, job = JobPublisher(connection), new_job()
    assert await publisher.publish(job, P1, publication=1) is Publication.STORED
    assert await publisher.publish(job, P1, publication=2) is Publication.ALREADY_QUEUED
    assert await queued(connection) == [P1]


async def test_a_full_queue_refuses_and_keeps_what_it_has(connection: Connection) -> None:
    await topology.apply(connection, TopologySettings(regions="local", jobs_max_count=3))
    publisher, jobs = JobPublisher(connection), [new_job() for _ in range(4)]
    for job in jobs[:3]:
        await publisher.publish(job, P0, publication=1)
    with pytest.raises(QueueFull, match="maximum messages exceeded"):
        await publisher.publish(jobs[3], P0, publication=1)
    # a job that is in already is no new one, full or not
    assert await publisher.publish(jobs[0], P0, publication=2) is Publication.ALREADY_QUEUED
    assert await queued(connection) == [P0, P0, P0]


async def test_a_queue_full_by_bytes_refuses(connection: Connection) -> None:
    await topology.apply(connection, TopologySettings(regions="local", jobs_max_bytes=1_000_000))
    publisher = JobPublisher(connection)
    await publisher.publish(new_job("x" * 600_000), P0, publication=1)
    with pytest.raises(QueueFull, match="maximum bytes exceeded"):
        await publisher.publish(new_job("x" * 600_000), P0, publication=1)


async def test_a_message_over_the_limit_never_leaves_and_the_connection_lives(connection: Connection) -> None:
    limit = connection.max_payload_bytes
    with pytest.raises(MessageTooLarge, match=f"{limit + 21} bytes with its headers but .* at most {limit}"):
        await connection.publish("some.where", b"x" * (limit - 8), headers={"name": "value-123"})
    with pytest.raises(MessageTooLarge):
        await JobPublisher(connection).publish(new_job("é" * (limit // 2)), P4, publication=1)
    # the largest that is let through is one that the server takes
    await connection.publish("some.where", b"x" * (limit - 29), headers={"name": "value-123"})
    assert await connection.echo(5.0)


async def test_the_longest_prompt_fits(connection: Connection) -> None:
    longest = Job(prompt_tokens=[2**20 - 1] * 262_144, tenant="acme", region="local")
    assert await JobPublisher(connection).publish(longest, P4, publication=1) is Publication.STORED


async def test_a_region_nobody_serves_is_said_so_at_once(connection: Connection) -> None:
    with pytest.raises(TopologyMissing):
        await JobPublisher(connection).publish(new_job(region="mars"), P0, publication=1)


async def test_a_job_without_tenant_is_refused(connection: Connection) -> None:
    with pytest.raises(InvalidMessage, match="tenant, region: missing"):
        await JobPublisher(connection).publish(Job(prompt="x"), P0, publication=1)


async def test_a_restarted_server_has_lost_its_streams_until_they_are_declared(
    nats_server: LocalServer, connection: Connection
) -> None:
    publisher, job = JobPublisher(connection), new_job()
    await publisher.publish(job, P0, publication=1)
    back = asyncio.Event()
    connection.on_reconnect(back.set)
    await nats_server.kill()
    await nats_server.start()
    await back.wait()
    with pytest.raises(TopologyMissing):
        await publisher.publish(job, P0, publication=2)
    await topology.apply(connection, TopologySettings(regions="local"))
    assert await publisher.publish(job, P0, publication=2) is Publication.STORED
    assert await queued(connection) == [P0]


async def test_after_an_uncertain_publish_the_same_one_again_is_stored_once(
    nats_server: LocalServer, connection: Connection
) -> None:
    job = new_job()
    impatient = JobPublisher(connection, PublishSettings(answer_timeout_s=0.05, give_up_s=0.1))
    nats_server.freeze()
    with pytest.raises(PublishUncertain, match="may or may not be done"):
        await impatient.publish(job, P0, publication=1)
    nats_server.thaw()
    assert await JobPublisher(connection).publish(job, P0, publication=1) is Publication.ALREADY_QUEUED
    assert await queued(connection) == [P0]


async def test_a_server_that_stays_away_is_not_connected(
    nats_server: LocalServer, connection: Connection
) -> None:
    await nats_server.stop()
    # the first try may still go out on the dying connection; the last one does not
    publisher = JobPublisher(connection, PublishSettings(answer_timeout_s=0.1, give_up_s=0.3))
    with pytest.raises(NotConnected, match="nothing was sent"):
        await publisher.publish(new_job(), P0, publication=1)


async def test_the_bell_tells_the_class_and_no_content(connection: Connection) -> None:
    heard: asyncio.Queue[Envelope] = asyncio.Queue()

    async def hear(envelope: Envelope) -> None:
        heard.put_nowait(envelope)

    await connection.subscribe(subjects.bell("local"), hear)
    job = new_job("secret")
    await JobPublisher(connection).publish(job, P3, publication=1)
    bell = await heard.get()
    assert (bell.subject, bell.payload) == ("bell.local.p3", b"")
    assert bell.headers["Nats-Msg-Id"] == f"{job.tenant}:{job.id}:1"


async def test_a_trace_goes_along_in_the_headers(connection: Connection) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    heard: asyncio.Queue[Envelope] = asyncio.Queue()

    async def hear(envelope: Envelope) -> None:
        heard.put_nowait(envelope)

    await connection.subscribe(subjects.all_jobs(), hear)
    await JobPublisher(connection).publish(new_job().evolve(traceparent=trace), P0, publication=1)
    assert (await heard.get()).headers["traceparent"] == trace


async def test_a_double_within_the_window_adds_nothing_whoever_runs_or_ran_the_first(
    connection: Connection,
) -> None:
    """The same publication again after the job has left the queue: its end is stored, look there."""
    job = new_job()
    publisher = JobPublisher(connection)
    assert await publisher.publish(job, P0, publication=1) is Publication.STORED
    assert (await ask(connection, "STREAM.PURGE.JOBS")).code == 0
    assert await publisher.publish(job, P0, publication=1) is Publication.ALREADY_QUEUED


async def test_one_tenants_id_is_no_double_of_anothers(connection: Connection) -> None:
    job = new_job()
    publisher = JobPublisher(connection)
    assert await publisher.publish(job, P0, publication=1) is Publication.STORED
    other = job.evolve(tenant="other")
    assert await publisher.publish(other, P0, publication=1) is Publication.STORED
