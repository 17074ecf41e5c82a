"""Client and handle on a real server: streams, cancels, losses, doubles, refusals."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest

import sparkle
from sparkle.errors import (
    FailureCode,
    InvalidMessage,
    JobFailed,
    MessageTooLarge,
    NotConnected,
    QueueFull,
    TenantOverShare,
    TopologyMissing,
)
from sparkle.producers.client import Client
from sparkle.producers.handle import Handle
from sparkle.producers.settings import ClientSettings
from sparkle.queue import topology
from sparkle.queue.answers import AnswerFeed
from sparkle.queue.connection import Connection
from sparkle.queue.local import LocalServer
from sparkle.queue.status import read_classes
from sparkle.queue.topology import TopologySettings
from sparkle.schemas import subjects
from sparkle.schemas.job import Job
from tests.integration.producers.conftest import (
    OpenClient,
    Run,
    StartWorker,
    answer,
    until,
    whole_answer,
)


def job(max_tokens: int = 5) -> Job:
    return Job(prompt="hello", max_tokens=max_tokens)


async def tombstone(connection: Connection, job_id: str) -> bool:
    subject = subjects.cancel("acme", job_id)
    return await connection.last_stored(subjects.CONTROL_STREAM, subject) is not None


async def text_of(handle: Handle) -> str:
    return "".join([chunk.text async for chunk in handle])


async def test_an_answer_streams_and_is_stored(
    nats_server: LocalServer, connection: Connection, start_worker: StartWorker
) -> None:
    await start_worker(whole_answer)
    async with sparkle.connect(nats_server.url, region="local", tenant="acme") as client:
        handle = await client.submit(job(60))
        chunks = [chunk async for chunk in handle]
        assert "".join(chunk.text for chunk in chunks) == answer(60)
        assert [token for chunk in chunks for token in chunk.tokens] == list(range(60))
        result = await handle.result()
        assert (result.job, result.text, result.usage.completion_tokens) == (handle.job_id, answer(60), 60)
    # the other form of the same call
    async with await sparkle.connect(nats_server.url, region="local") as client:
        assert await (await client.submit(job(3))).text() == "abc"


async def test_many_jobs_at_once_over_one_connection(client: Client, start_worker: StartWorker) -> None:
    worker = await start_worker(whole_answer)
    lengths = [1 + number % 40 for number in range(200)]
    handles = await asyncio.gather(*(client.submit(job(length)) for length in lengths))
    texts = await asyncio.gather(*map(text_of, handles))
    assert texts == [answer(length) for length in lengths]
    assert sorted(worker.runs) == sorted(handle.job_id for handle in handles)


async def test_a_cancelled_job_ends_here_and_leaves_its_tombstone(
    client: Client, connection: Connection, start_worker: StartWorker
) -> None:
    async def begin_only(run: Run) -> None:
        await run.write(0, 1)
        await asyncio.Event().wait()

    await start_worker(begin_only)
    handle = await client.submit(job())
    assert (await anext(handle)).text == "a"
    await handle.cancel()
    with pytest.raises(JobFailed) as caught:
        await anext(handle)
    assert caught.value.code is FailureCode.CANCELLED
    assert await tombstone(connection, handle.job_id)


async def test_an_id_that_is_submitted_again_right_after_its_cancel_is_heard(
    nats_server: LocalServer, start_worker: StartWorker
) -> None:
    go_on = asyncio.Event()

    async def write_when_told(run: Run) -> None:
        await run.write(0, 1)
        await go_on.wait()
        # no end is stored, that could be looked up
        await run.write(1, 5)

    await start_worker(write_when_told)
    async with sparkle.connect(nats_server.url, region="local", tenant="acme") as client:
        asked = job()
        first = await client.submit(asked)
        await anext(first)
        await first.cancel()
        again = await client.submit(asked)
        go_on.set()
        async with asyncio.timeout(20.0):
            assert (await anext(again)).text.startswith("a")


@pytest.mark.parametrize("code", list(FailureCode))
async def test_a_failure_comes_with_its_code(
    client: Client, start_worker: StartWorker, code: FailureCode
) -> None:
    async def fail(run: Run) -> None:
        await run.write(0, 2)
        await run.fail(code)

    await start_worker(fail)
    handle = await client.submit(job())
    read: list[str] = []
    with pytest.raises(JobFailed) as streamed:
        read.extend([chunk.text async for chunk in handle])
    with pytest.raises(JobFailed) as awaited:
        await handle.result()
    assert streamed.value.code is awaited.value.code is code


async def test_a_lost_chunk_is_sent_again(
    open_client: OpenClient, connection: Connection, start_worker: StartWorker
) -> None:
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def in_two_parts(run: Run) -> None:
        await run.write(0, 3)
        begun.set()
        await may_end.wait()
        await run.write(3, 4)
        await asyncio.Event().wait()

    await start_worker(in_two_parts)
    first, second = await open_client(), await open_client()
    asked = job()
    await first.submit(asked)
    await begun.wait()
    # the second client comes when three chunks have gone by: the fourth shows it the gap
    late = await second.submit(asked)
    may_end.set()
    text = ""
    while len(text) < 4:
        text += (await anext(late)).text
    assert text == "abcd"


async def test_a_lost_tail_is_filled_from_the_result(client: Client, start_worker: StartWorker) -> None:
    async def lose_the_tail(run: Run) -> None:
        await run.write(0, 2)
        await run.finish()

    await start_worker(lose_the_tail)
    handle = await client.submit(job(7))
    assert await text_of(handle) == answer(7)


async def test_a_higher_attempt_goes_on_where_the_first_stopped(
    client: Client, start_worker: StartWorker
) -> None:
    attempts: list[int] = []

    async def hand_back_once(run: Run) -> None:
        attempts.append(run.lease.attempt)
        if run.lease.attempt == 1:
            await run.write(0, 3)
            await run.lease.nak()
        else:
            await whole_answer(run)

    await start_worker(hand_back_once)
    handle = await client.submit(job(6))
    chunks = [chunk async for chunk in handle]
    assert attempts == [1, 2]
    # what nobody has read yet is merged, so their number is left to chance
    assert [token for chunk in chunks if chunk.attempt == 1 for token in chunk.tokens] == [0, 1, 2]
    assert [token for chunk in chunks if chunk.attempt == 2 for token in chunk.tokens] == [3, 4, 5]
    assert "".join(chunk.text for chunk in chunks) == answer(6)


async def test_one_id_twice_in_one_client_is_one_handle(client: Client, start_worker: StartWorker) -> None:
    asked = job()
    first, second = await asyncio.gather(client.submit(asked), client.submit(asked))
    assert first is second
    with pytest.raises(InvalidMessage, match=f"id: {asked.id} is open with other fields"):
        await client.submit(asked.evolve(max_tokens=6))
    worker = await start_worker(whole_answer)
    assert await first.text() == "abcde"
    assert worker.runs == [asked.id]


async def test_one_id_from_two_clients_runs_once_and_both_have_the_answer(
    open_client: OpenClient, connection: Connection, start_worker: StartWorker
) -> None:
    asked = job()
    handles = [await (await open_client()).submit(asked) for _ in range(2)]
    worker = await start_worker(whole_answer)
    assert [await text_of(handle) for handle in handles] == ["abcde", "abcde"]
    assert worker.runs == [asked.id]


async def test_an_id_whose_answer_is_stored_gives_that_answer(
    open_client: OpenClient, connection: Connection, start_worker: StartWorker
) -> None:
    worker = await start_worker(whole_answer)
    asked = job()
    assert await (await (await open_client()).submit(asked)).text() == "abcde"
    again = await (await open_client()).submit(asked)
    assert await text_of(again) == "abcde"
    assert worker.runs == [asked.id]


async def test_a_missing_topology_is_told_at_once(nats_server: LocalServer) -> None:
    async with sparkle.connect(nats_server.url, region="local") as client:
        with pytest.raises(TopologyMissing, match="run `sparkle topology apply`"):
            await client.submit(job())


async def test_a_region_that_is_not_declared_is_told_at_once(
    nats_server: LocalServer, connection: Connection
) -> None:
    async with sparkle.connect(nats_server.url, region="mars") as client:
        with pytest.raises(TopologyMissing, match=r"nobody listens to jobs\.mars\."):
            await client.submit(job())


async def test_a_full_queue_is_told_at_once(nats_server: LocalServer, connection: Connection) -> None:
    await topology.apply(connection, TopologySettings(regions="local", jobs_max_count=2))
    async with sparkle.connect(nats_server.url, region="local") as client:
        for _ in range(2):
            await client.submit(job())
        with pytest.raises(QueueFull, match="maximum messages exceeded"):
            await client.submit(job())


async def test_a_tenant_over_its_share_is_told_at_once_and_others_are_not(
    nats_server: LocalServer, connection: Connection, start_worker: StartWorker
) -> None:
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def begin(run: Run) -> None:
        await run.write(0, 1)
        begun.set()
        await may_end.wait()
        await run.write(1, run.job.max_tokens)
        await run.finish()

    settings = ClientSettings(nats=nats_server.url, tenant="acme", max_waiting=2)
    async with (
        await Client.open(settings) as client,
        await Client.open(replace(settings, tenant="other")) as other,
    ):
        first, second = await client.submit(job()), await client.submit(job())
        with pytest.raises(
            TenantOverShare, match="tenant acme has 2 jobs waiting here and may have at most 2"
        ):
            await client.submit(job())
        await other.submit(job())
        # it was never on the queue
        assert sum(row.waiting for row in await read_classes(connection, "local")) == 3
        await first.cancel()
        third = await client.submit(job())
        with pytest.raises(TenantOverShare):
            await client.submit(job())
        await start_worker(begin)
        # jobs that run do not wait
        await anext(second)
        await anext(third)
        await client.submit(job())
        may_end.set()
        assert await second.text() == "abcde"


async def test_a_job_over_the_limit_is_told_at_once_and_the_client_goes_on(
    client: Client, start_worker: StartWorker
) -> None:
    await start_worker(whole_answer)
    with pytest.raises(MessageTooLarge, match="at most 8388608"):
        await client.submit(Job(messages=[sparkle.Turn(role="user", content="x" * 7_999_999)] * 2))
    # just under the limit of the contract, but over it with the headers
    with pytest.raises(MessageTooLarge):
        await client.submit(Job(messages=[sparkle.Turn(role="user", content="x" * 4_194_150)] * 2))
    assert await (await client.submit(job())).text() == "abcde"


async def test_a_prompt_without_room_for_an_answer_is_refused_before_it_is_sent(
    nats_server: LocalServer, connection: Connection
) -> None:
    longest = [7] * 262_144
    counted = sparkle.connect(
        nats_server.url, region="local", tenant="acme", count_tokens=lambda job: 262_143 + job.max_tokens
    )
    async with counted as client:
        for asked in (Job(prompt="of 262,144 tokens", max_tokens=1), Job(prompt="of more", max_tokens=9)):
            tokens = 262_143 + asked.max_tokens
            with pytest.raises(JobFailed, match=f"has {tokens} tokens .* room for 262144") as caught:
                await client.submit(asked)
            assert (caught.value.code, caught.value.retryable) == (FailureCode.TOO_LONG, False)
    async with sparkle.connect(nats_server.url, region="local", tenant="acme") as client:
        with pytest.raises(JobFailed, match=r"has 262144 tokens .* room for 262144"):
            await client.submit(Job(prompt_tokens=longest))
        assert sum(row.waiting for row in await read_classes(connection, "local")) == 0
        await client.submit(Job(prompt_tokens=longest[1:]))
        # an estimate refuses nothing
        await client.submit(Job(prompt="a" * 4 * 262_144))
        assert sum(row.waiting for row in await read_classes(connection, "local")) == 2


async def test_a_job_of_another_tenant_or_region_is_refused(client: Client) -> None:
    for field in ("tenant", "region"):
        with pytest.raises(InvalidMessage, match=f"{field}: the job names another one"):
            await client.submit(job().evolve(**{field: "other"}))


async def test_a_passed_deadline_ends_the_handle_here(client: Client) -> None:
    asked = job().evolve(deadline_ms=int(time.time() * 1000) + 200)
    handle = await client.submit(asked)
    with pytest.raises(JobFailed) as caught:
        await handle.result()
    assert caught.value.code is FailureCode.DEADLINE_EXCEEDED


async def test_two_submits_of_one_id_share_what_becomes_of_the_first(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = asyncio.Event()

    async def fail_later(*_: object, **__: object) -> None:
        await go_on.wait()
        raise NotConnected("the connection is closed")

    monkeypatch.setattr(AnswerFeed, "open", fail_later)
    asked = job()
    first, second = (asyncio.create_task(client.submit(asked)) for _ in range(2))
    await asyncio.wait({first, second}, timeout=0)
    go_on.set()
    with pytest.raises(NotConnected):
        await first
    async with asyncio.timeout(5.0):
        handle = await second
        with pytest.raises(NotConnected):
            await handle.result()


async def test_closing_the_client_ends_its_handles(client: Client) -> None:
    handle = await client.submit(job())
    reading = asyncio.create_task(text_of(handle))
    await asyncio.sleep(0)
    await client.close()
    for waiting in (reading, handle.result(), client.submit(job())):
        with pytest.raises(NotConnected):
            await waiting
    await client.close()


async def test_a_submit_that_is_given_up_is_not_made_up_for_later(
    client: Client, nats_server: LocalServer, second_connection: Connection
) -> None:
    await nats_server.kill()
    given_up = asyncio.create_task(client.submit(job()))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(given_up, timeout=0.2)
    await nats_server.start()
    await topology.apply(second_connection, TopologySettings(regions="local"))
    # what waited for the server longer would be stored first
    await client.submit(job())
    assert sum(row.waiting for row in await read_classes(second_connection, "local")) == 1


async def test_a_submit_that_is_given_up_cancels_what_may_be_stored(
    nats_server: LocalServer, connection: Connection
) -> None:
    # no answer can come in this time
    settings = ClientSettings(nats=nats_server.url, region="local", tenant="acme", publish_timeout_s=1e-5)
    async with await Client.open(settings) as client:
        asked = job()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.submit(asked), timeout=0.2)
        await until(lambda: tombstone(connection, asked.id))


async def test_nothing_of_a_job_or_its_answer_is_logged(
    client: Client,
    nats_server: LocalServer,
    second_connection: Connection,
    start_worker: StartWorker,
    caplog: pytest.LogCaptureFixture,
) -> None:
    canary = "canary-7f3a"

    async def echo(run: Run) -> None:
        await run.worker.replies.send(run.tenant, run.chunk(0).model_copy(update={"text": canary}))
        await run.end(run.result().model_copy(update={"text": canary, "tokens": [0]}))

    caplog.set_level("DEBUG")
    await start_worker(echo)
    handle = await client.submit(Job(prompt=canary))
    assert await text_of(handle) == canary
    waits = [client.submit(Job(prompt=canary, deadline_ms=int(time.time() * 1000))), client.submit(job())]
    await nats_server.restart()
    await topology.apply(second_connection, TopologySettings(regions="local"))
    with pytest.raises(JobFailed) as failed:
        await (await waits[0]).result()
    await (await waits[1]).cancel()
    assert canary not in str(failed.value)
    assert caplog.records
    for record in caplog.records:
        assert canary not in f"{record.getMessage()} {vars(record)}"
