"""A server that dies and forgets everything: every job is still answered, and none runs twice at once."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable

import pytest

from sparkle.errors import NotConnected
from sparkle.producers.client import Client
from sparkle.producers.settings import ClientSettings
from sparkle.queue import topology
from sparkle.queue.connection import Connection, ConnectionSettings, Envelope
from sparkle.queue.control import HeartbeatSender
from sparkle.queue.local import LocalServer
from sparkle.queue.status import read_classes
from sparkle.queue.topology import TopologySettings
from sparkle.schemas.control import Heartbeat, WorkerState
from sparkle.schemas.job import Job
from tests.integration.producers.conftest import OpenClient, Run, StartWorker, Wire, answer, whole_answer

TOPOLOGY = TopologySettings(regions="local")


def job(max_tokens: int = 5) -> Job:
    return Job(prompt="hello", max_tokens=max_tokens)


async def lose_everything(server: LocalServer, operator: Connection) -> None:
    """The server dies and comes back empty; an operator declares the streams again."""
    await server.kill()
    await server.start()
    await topology.apply(operator, TOPOLOGY)


async def waiting_jobs(connection: Connection) -> int:
    return sum(row.waiting for row in await read_classes(connection, "local"))


async def test_jobs_lost_by_the_queue_are_published_again(
    client: Client, nats_server: LocalServer, second_connection: Connection, start_worker: StartWorker
) -> None:
    handles = [await client.submit(job(3 + number)) for number in range(20)]
    assert await waiting_jobs(second_connection) == 20
    await lose_everything(nats_server, second_connection)
    worker = await start_worker(whole_answer)
    texts = await asyncio.gather(*(handle.text() for handle in handles))
    assert texts == [answer(3 + number) for number in range(20)]
    assert sorted(worker.runs) == sorted(handle.job_id for handle in handles)
    assert worker.doubled == set()


async def test_a_job_that_still_runs_after_the_loss_is_not_run_a_second_time(
    client: Client, nats_server: LocalServer, second_connection: Connection, start_worker: StartWorker
) -> None:
    """One job runs on, another is dropped: when that one runs again, the first one's turn has passed."""
    kept, dropped = job(5), job(6)
    begun = {asked.id: asyncio.Event() for asked in (kept, dropped)}
    runs_again, may_end = asyncio.Event(), asyncio.Event()

    async def write_on(run: Run) -> None:
        await run.write(0, 1)
        if run.job.id == dropped.id and begun[dropped.id].is_set():
            runs_again.set()
            await whole_answer(run)
        begun[run.job.id].set()
        if run.job.id == kept.id:
            await may_end.wait()
            await run.write(1, run.job.max_tokens)
            # its lease is gone with the stream, so nothing is acknowledged
            await run.worker.replies.store_end(run.tenant, run.result())

    worker = await start_worker(write_on)
    handles = [await client.submit(kept), await client.submit(dropped)]
    for event in begun.values():
        await event.wait()
    sender = heartbeats(second_connection, lambda: sorted(worker.running))
    await lose_everything(nats_server, second_connection)
    await runs_again.wait()
    may_end.set()
    assert [await handle.text() for handle in handles] == ["abcde", "abcdef"]
    assert worker.runs == [kept.id, dropped.id, dropped.id]
    sender.cancel()


async def test_a_job_whose_worker_died_with_the_queue_runs_again(
    client: Client, nats_server: LocalServer, second_connection: Connection, start_worker: StartWorker
) -> None:
    begun = asyncio.Event()

    async def die(run: Run) -> None:
        await run.write(0, 2)
        begun.set()
        await asyncio.Event().wait()

    first = await start_worker(die)
    handle = await client.submit(job(8))
    await begun.wait()
    await first.stop()
    await lose_everything(nats_server, second_connection)
    await start_worker(whole_answer)
    chunks = [chunk async for chunk in handle]
    assert "".join(chunk.text for chunk in chunks) == answer(8)
    assert [token for chunk in chunks for token in chunk.tokens] == list(range(8))


async def test_what_was_sent_while_the_client_was_away_is_found(
    wire: Wire, open_client: OpenClient, connection: Connection, start_worker: StartWorker
) -> None:
    begun, may_end, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def end_when_told(run: Run) -> None:
        await run.write(0, 1)
        begun.set()
        await may_end.wait()
        await run.write(1, run.job.max_tokens)
        await run.finish()
        ended.set()

    worker = await start_worker(end_when_told)
    handle = await (await open_client(wire.url)).submit(job())
    await begun.wait()
    wire.cut()
    may_end.set()
    await ended.wait()
    wire.mend()
    assert "".join([chunk.text async for chunk in handle]) == "abcde"
    assert worker.runs == [handle.job_id]


async def test_chunks_sent_while_the_client_was_away_are_sent_again(
    wire: Wire, open_client: OpenClient, connection: Connection, start_worker: StartWorker
) -> None:
    begun, may_go_on, heard = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def write_through_a_cut(run: Run) -> None:
        await run.write(0, 1)
        begun.set()
        await may_go_on.wait()
        await run.write(1, 4)
        wire.mend()
        # the answer goes on until the client is back and has asked for what it missed
        for index in itertools.takewhile(lambda _: not heard.is_set(), itertools.count(4)):
            await run.write(index, index + 1)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.01):
                    await heard.wait()
        await asyncio.Event().wait()

    await start_worker(write_through_a_cut)
    handle = await (await open_client(wire.url)).submit(job())
    await begun.wait()
    wire.cut()
    may_go_on.set()
    tokens: list[int] = []
    while len(tokens) < 5:
        tokens += (await anext(handle)).tokens
    heard.set()
    assert tokens == list(range(len(tokens)))


async def test_a_job_submitted_while_the_server_is_away_is_stored_when_it_is_back(
    client: Client, nats_server: LocalServer, second_connection: Connection, start_worker: StartWorker
) -> None:
    await nats_server.kill()
    submitting = [asyncio.create_task(client.submit(job(4))) for _ in range(5)]
    await asyncio.sleep(0)
    assert not any(task.done() for task in submitting)
    await nats_server.start()
    await topology.apply(second_connection, TOPOLOGY)
    worker = await start_worker(whole_answer)
    handles = await asyncio.gather(*submitting)
    assert await asyncio.gather(*(handle.text() for handle in handles)) == ["abcd"] * 5
    assert sorted(worker.runs) == sorted(handle.job_id for handle in handles)


async def test_a_publish_that_timed_out_is_repeated_and_stored_once(
    nats_server: LocalServer, connection: Connection, start_worker: StartWorker
) -> None:
    # so short that the answer to the first tries comes too late
    settings = ClientSettings(nats=nats_server.url, region="local", tenant="acme", publish_timeout_s=1e-5)
    worker = await start_worker(whole_answer)
    async with await Client.open(settings) as client:
        handles = await asyncio.gather(*(client.submit(job()) for _ in range(10)))
        assert await asyncio.gather(*(handle.text() for handle in handles)) == ["abcde"] * 10
    assert sorted(worker.runs) == sorted(handle.job_id for handle in handles)
    assert worker.doubled == set()


async def test_no_server_is_told_with_its_address() -> None:
    server = LocalServer()
    await server.start()
    url = server.url
    await server.stop()
    with pytest.raises(NotConnected, match=url.removeprefix("nats://")):
        await Client.open(ClientSettings(nats=url, connect_timeout_s=0.2))


def heartbeats(connection: Connection, running: Callable[[], list[str]]) -> asyncio.Task[None]:
    """A worker's heartbeats, fast."""

    def beat() -> Heartbeat:
        return Heartbeat(
            worker="w1",
            region="local",
            state=WorkerState.READY,
            model="script",
            slots=32,
            running=running(),
            sent_ms=0,
        )

    return asyncio.create_task(HeartbeatSender(connection, beat, interval_s=0.05).run())


@pytest.mark.parametrize("payloads", [0, 1])
async def test_a_connection_closes_at_any_moment_of_an_outage(wire: Wire, payloads: int) -> None:
    """What the library met while it closed, a cancelled task of its own or a lost socket, came out of it."""

    async def ignore(_: Envelope) -> None:
        return

    for turns in range(60):
        connection = await Connection.open(ConnectionSettings(url=wire.url, reconnect_wait_s=0.01))
        before = asyncio.all_tasks()
        await connection.subscribe("x", ignore)
        listening = asyncio.all_tasks() - before
        assert listening
        wire.cut()
        wire.mend()
        # from before the loss is noticed until after the connection is back, one turn of the loop at a time
        for _ in range(turns):
            await asyncio.sleep(0)
        for _ in range(payloads):
            await connection.publish("y", b"waits to be sent")
        await connection.close()
        assert connection.closed.is_set()
        assert not _reconnecting()
        await asyncio.wait(listening, timeout=5.0)
        assert all(task.done() for task in listening)


def _reconnecting() -> list[str]:
    """The library's tasks that connect a client anew."""
    names = [getattr(task.get_coro(), "__qualname__", "") for task in asyncio.all_tasks()]
    return [name for name in names if name == "Client._attempt_reconnect"]
