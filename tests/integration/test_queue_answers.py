"""Answers over a real server: chunks, lost ones again, one stored end, cancels."""

from __future__ import annotations

import asyncio

import pytest

from sparkle.errors import FailureCode, InvalidMessage, TopologyMissing
from sparkle.queue import topology
from sparkle.queue.answers import AnswerFeed
from sparkle.queue.api import ask
from sparkle.queue.connection import Connection, ConnectionSettings
from sparkle.queue.control import ControlFeed
from sparkle.queue.local import LocalServer
from sparkle.queue.outgoing import JobPublisher
from sparkle.queue.replies import ReplySettings, ReplyStream
from sparkle.queue.topology import TopologySettings
from sparkle.schemas import subjects
from sparkle.schemas.answer import Channel, Chunk, Failure, FinishReason, Result, Usage
from sparkle.schemas.codec import encode
from sparkle.schemas.control import Cancel, EndConversation
from sparkle.schemas.ids import new_job_id
from tests.conftest import REGION, Eventually


def chunk(job: str, seq: int, *, attempt: int = 1) -> Chunk:
    return Chunk(
        job=job,
        attempt=attempt,
        seq=seq,
        first_index=seq,
        tokens=[seq],
        text=f"{seq} ",
        text_start=2 * seq,
        channel=Channel.ANSWER,
        worker="w1",
    )


def result(job: str, *, attempt: int = 1, text: str = "done") -> Result:
    return Result(
        job=job,
        attempt=attempt,
        worker="w1",
        text=text,
        tokens=[1],
        finish_reason=FinishReason.STOP,
        usage=Usage(prompt_tokens=1, completion_tokens=1, queue_s=0.0, first_token_s=0.0, total_s=0.0),
    )


class Heard:
    """What a producer got of one job."""

    def __init__(self) -> None:
        self.chunks: list[Chunk] = []
        self.ends: list[Result | Failure] = []

    async def open(self, connection: Connection, job: str) -> AnswerFeed:
        feed = AnswerFeed(connection)
        await feed.open("acme", job, self.chunks.append, self.ends.append)
        # both sides share a server: what is published after this echo reaches the subscription
        assert await connection.echo(5.0)
        return feed

    @property
    def seqs(self) -> list[tuple[int, int]]:
        return [(chunk.attempt, chunk.seq) for chunk in self.chunks]


async def test_lost_chunks_come_again_from_the_one_asked_for(
    connection: Connection, eventually: Eventually
) -> None:
    job, heard = new_job_id(), Heard()
    replies = ReplyStream(connection, "w1")
    await replies.start()
    # nobody listens yet: these are lost
    for seq in range(5):
        await replies.send("acme", chunk(job, seq))
    feed = await heard.open(connection, job)
    await feed.ask_resend("w1", job, 1, 2)
    await eventually(lambda: len(heard.chunks) == 3)
    await replies.store_end("acme", result(job))
    await feed.ask_resend("w1", job, 1, 4)
    await eventually(lambda: len(heard.chunks) == 4)
    assert heard.seqs == [(1, 2), (1, 3), (1, 4), (1, 4)]
    assert heard.ends == [result(job)]


async def test_much_that_was_lost_comes_in_parts_and_all_of_it_to_who_asks_on(
    connection: Connection, eventually: Eventually
) -> None:
    """Each chunk counts as a kilobyte: twenty come at once, and as many more a second."""
    job, heard, lost = new_job_id(), Heard(), 30
    replies = ReplyStream(connection, "w1", ReplySettings(resend_bytes_per_s=20 * 1024))
    await replies.start()
    for seq in range(lost):
        await replies.send("acme", chunk(job, seq))
    feed = await heard.open(connection, job)
    await feed.ask_resend("w1", job, 1, 0)
    await eventually(lambda: len(heard.chunks) >= 20)
    assert await connection.echo(5.0)
    assert heard.seqs == [(1, seq) for seq in range(20)]
    while (1, lost - 1) not in heard.seqs:
        # refused until there is something to spend again
        await feed.ask_resend("w1", job, 1, len(set(heard.seqs)))
        assert await connection.echo(5.0)
    assert sorted(set(heard.seqs)) == [(1, seq) for seq in range(lost)]


async def test_nothing_of_another_attempt_or_of_a_job_long_over_comes_again(
    connection: Connection, eventually: Eventually
) -> None:
    old, job, heard = new_job_id(), new_job_id(), Heard()
    replies = ReplyStream(connection, "w1", ReplySettings(keep_s=1e-6))
    await replies.start()
    await replies.send("acme", chunk(old, 0))
    await replies.store_end("acme", result(old))
    await replies.send("acme", chunk(job, 0, attempt=2))
    feed = await heard.open(connection, old)
    await feed.open("acme", job, heard.chunks.append, heard.ends.append)
    await feed.ask_resend("w1", old, 1, 0)
    await feed.ask_resend("w1", job, 1, 0)
    await feed.ask_resend("w1", job, 2, 0)
    await eventually(lambda: heard.chunks)
    assert heard.chunks == [chunk(job, 0, attempt=2)]


async def test_what_is_kept_of_an_answer_goes_in_time_where_no_other_comes(
    connection: Connection, eventually: Eventually
) -> None:
    replies, job = ReplyStream(connection, "w1", ReplySettings(keep_s=0.05)), new_job_id()
    await replies.send("acme", chunk(job, 0))
    await replies.store_end("acme", result(job))
    assert replies.kept_bytes > 0
    await eventually(lambda: replies.kept_bytes == 0)


async def test_the_end_comes_after_the_chunks_on_the_same_subject(
    connection: Connection, eventually: Eventually
) -> None:
    job, order = new_job_id(), list[object]()
    feed, replies = AnswerFeed(connection), ReplyStream(connection, "w1")
    await feed.open("acme", job, order.append, order.append)
    for seq in range(50):
        await replies.send("acme", chunk(job, seq))
    await replies.store_end("acme", result(job))
    await eventually(lambda: len(order) == 51)
    assert order == [*(chunk(job, seq) for seq in range(50)), result(job)]


async def test_the_first_stored_end_stands(connection: Connection, eventually: Eventually) -> None:
    job, heard = new_job_id(), Heard()
    feed = await heard.open(connection, job)
    one, two = ReplyStream(connection, "w1"), ReplyStream(connection, "w2")
    assert not await one.end_stored("acme", job)
    stored = await asyncio.gather(
        one.store_end("acme", result(job, attempt=1, text="first")),
        two.store_end("acme", result(job, attempt=2, text="second")),
    )
    assert sorted(stored) == [False, True]
    winner = await feed.stored_end("acme", job)
    assert isinstance(winner, Result)
    assert winner.text == ("first" if stored[0] else "second")
    assert await two.end_stored("acme", job)
    # the loser is heard of nowhere
    assert await connection.echo(5.0)
    assert heard.ends == [winner]


async def test_the_same_end_again_is_stored_as_well(connection: Connection) -> None:
    """As after an acknowledgement that was lost on its way."""
    job, replies = new_job_id(), ReplyStream(connection, "w1")
    assert await replies.store_end("acme", result(job))
    assert await replies.store_end("acme", result(job))


async def test_a_failure_is_an_end(connection: Connection, eventually: Eventually) -> None:
    job, heard = new_job_id(), Heard()
    feed = await heard.open(connection, job)
    failure = Failure(job=job, code=FailureCode.TOO_LONG, message="prompt has 9 tokens", retryable=False)
    assert await ReplyStream(connection, "w1").store_end("acme", failure)
    await eventually(lambda: heard.ends)
    assert heard.ends == [failure]
    assert await feed.stored_end("acme", job) == failure


async def test_the_largest_end_that_is_stored_is_heard(
    connection: Connection, eventually: Eventually
) -> None:
    job, heard = new_job_id(), Heard()
    await heard.open(connection, job)
    largest = result(job, text="x" * (connection.max_payload_bytes - 1024))
    assert await ReplyStream(connection, "w1").store_end("acme", largest)
    await eventually(lambda: heard.ends)
    assert heard.ends == [largest]


async def test_an_end_waits_for_streams_that_come_back(
    nats_server: LocalServer, connection: Connection
) -> None:
    job, replies = new_job_id(), ReplyStream(connection, "w1")
    assert (await ask(connection, "STREAM.DELETE.RESULTS")).code == 0
    storing = asyncio.create_task(replies.store_end("acme", result(job)))
    await topology.apply(connection, TopologySettings(regions="local"))
    assert await storing


async def test_an_end_with_nowhere_to_go_is_said_so(connection: Connection) -> None:
    replies = ReplyStream(connection, "w1", ReplySettings(give_up_s=0.05))
    assert (await ask(connection, "STREAM.DELETE.RESULTS")).code == 0
    with pytest.raises(TopologyMissing):
        await replies.store_end("acme", result(new_job_id()))


async def test_what_is_no_answer_of_this_job_is_passed_over(
    connection: Connection, eventually: Eventually
) -> None:
    job, heard = new_job_id(), Heard()
    await heard.open(connection, job)
    for payload in (b"", b"\xc1", encode(Cancel(job=job)), encode(chunk(new_job_id(), 0))):
        await connection.publish(subjects.reply("acme", job), payload)
    await connection.publish(subjects.reply("acme", job), encode(chunk(job, 7)))
    await eventually(lambda: heard.chunks)
    assert heard.seqs == [(1, 7)]


async def test_a_closed_feed_hears_nothing_more(connection: Connection, eventually: Eventually) -> None:
    job, heard, replies = new_job_id(), Heard(), ReplyStream(connection, "w1")
    feed = await heard.open(connection, job)
    await replies.send("acme", chunk(job, 0))
    await eventually(lambda: heard.chunks)
    await feed.close("acme", job)
    await replies.send("acme", chunk(job, 1))
    assert await connection.echo(5.0)
    assert heard.seqs == [(1, 0)]


async def test_what_is_opened_anew_while_the_old_is_being_closed_stays_open(
    connection: Connection, eventually: Eventually
) -> None:
    job, heard, replies = new_job_id(), Heard(), ReplyStream(connection, "w1")
    feed = await heard.open(connection, job)
    closing = feed.close("acme", job)
    await feed.open("acme", job, heard.chunks.append, heard.ends.append)
    await closing
    await replies.send("acme", chunk(job, 0))
    await eventually(lambda: heard.chunks)
    assert await connection.echo(5.0)
    # by the new one alone
    assert heard.seqs == [(1, 0)]


async def test_subscriptions_are_back_after_a_restart(
    nats_server: LocalServer, connection: Connection, eventually: Eventually
) -> None:
    job, heard, replies = new_job_id(), Heard(), ReplyStream(connection, "w1")
    await replies.start()
    await heard.open(connection, job)
    await replies.send("acme", chunk(job, 0))
    await eventually(lambda: heard.chunks)
    back = asyncio.Event()
    connection.on_reconnect(back.set)
    await nats_server.restart()
    await back.wait()
    await replies.send("acme", chunk(job, 1))
    await AnswerFeed(connection).ask_resend("w1", job, 1, 0)
    await eventually(lambda: len(heard.chunks) == 4)
    assert heard.seqs == [(1, 0), (1, 1), (1, 0), (1, 1)]


async def test_a_cancel_reaches_running_workers_and_those_to_come(
    nats_server: LocalServer, connection: Connection, eventually: Eventually
) -> None:
    job, cancelled, ended = new_job_id(), list[tuple[str, str]](), list[tuple[str, str]]()
    worker = await Connection.open(ConnectionSettings(url=nats_server.url))
    control = ControlFeed(
        worker,
        REGION,
        "w1",
        on_cancel=lambda tenant, name: cancelled.append((tenant, name)),
        on_conversation_end=lambda tenant, name: ended.append((tenant, name)),
        on_drain=lambda: None,
    )
    await control.start()
    assert await worker.echo(5.0)
    replies = ReplyStream(worker, "w1")
    assert not await replies.is_cancelled("acme", job)
    await JobPublisher(connection).cancel("acme", job)
    await eventually(lambda: cancelled)
    assert cancelled == [("acme", job)]
    assert await replies.is_cancelled("acme", job)
    assert not await replies.is_cancelled("other", job)
    # a second cancel is no error
    await JobPublisher(connection).cancel("acme", job)
    assert ended == []
    await control.stop()
    await JobPublisher(connection).cancel("acme", job)
    assert await connection.echo(5.0)
    assert await worker.echo(5.0)
    assert len(cancelled) == 2
    await worker.close()


async def test_the_end_of_a_conversation_reaches_all_workers(
    nats_server: LocalServer, connection: Connection, eventually: Eventually
) -> None:
    ended: list[tuple[str, str]] = []
    workers = [await Connection.open(ConnectionSettings(url=nats_server.url)) for _ in range(3)]
    for worker in workers:
        control = ControlFeed(
            worker,
            REGION,
            "w1",
            on_cancel=lambda _, __: pytest.fail("nothing was cancelled"),
            on_conversation_end=lambda tenant, name: ended.append((tenant, name)),
            on_drain=lambda: None,
        )
        await control.start()
        assert await worker.echo(5.0)
    await JobPublisher(connection).end_conversation("acme", "c_1-A")
    await eventually(lambda: len(ended) == 3)
    assert ended == [("acme", "c_1-A")] * 3
    for worker in workers:
        await worker.close()


@pytest.mark.parametrize("conversation", ["", "a.b", "*", ">", "a b", "x" * 65, "canary\n"])
async def test_a_malformed_conversation_is_refused_before_it_is_a_subject(
    connection: Connection, conversation: str
) -> None:
    with pytest.raises(InvalidMessage, match="conversation: ") as caught:
        await JobPublisher(connection).end_conversation("acme", conversation)
    assert "canary" not in str(caught.value)


async def test_an_end_that_names_another_conversation_than_its_subject_is_passed_over(
    connection: Connection, eventually: Eventually
) -> None:
    ended: list[str] = []
    control = ControlFeed(
        connection,
        REGION,
        "w1",
        on_cancel=lambda _, __: None,
        on_conversation_end=lambda _, conversation: ended.append(conversation),
        on_drain=lambda: None,
    )
    await control.start()
    subject = subjects.end_conversation("acme", "ours")
    await connection.publish(subject, encode(EndConversation(conversation="theirs")))
    await connection.publish(subject, encode(EndConversation(conversation="ours")))
    await eventually(lambda: ended)
    assert ended == ["ours"]


async def test_a_cancel_that_names_another_job_than_its_subject_is_passed_over(
    connection: Connection, eventually: Eventually
) -> None:
    job, other, cancelled = new_job_id(), new_job_id(), list[str]()
    control = ControlFeed(
        connection,
        REGION,
        "w1",
        on_cancel=lambda _, job: cancelled.append(job),
        on_conversation_end=lambda _, __: None,
        on_drain=lambda: None,
    )
    await control.start()
    await connection.publish(subjects.cancel("acme", job), encode(Cancel(job=other)))
    await connection.publish(subjects.cancel("acme", job), encode(Cancel(job=job)))
    await eventually(lambda: cancelled)
    assert cancelled == [job]
