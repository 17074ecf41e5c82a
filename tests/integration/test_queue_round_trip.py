"""One job through every class of the queue: published, pulled, answered, stored, acknowledged."""

from __future__ import annotations

import asyncio

from sparkle.queue.answers import AnswerFeed
from sparkle.queue.connection import Connection
from sparkle.queue.delivery import Delivery
from sparkle.queue.lease import Lease
from sparkle.queue.outgoing import JobPublisher, Publication
from sparkle.queue.puller import Puller
from sparkle.queue.replies import ReplyStream
from sparkle.queue.status import read_classes
from sparkle.schemas.answer import Channel, Chunk, Failure, FinishReason, Result, Usage
from sparkle.schemas.codec import decode
from sparkle.schemas.job import Job
from sparkle.schemas.priority import PriorityClass


async def test_a_job_comes_back_as_chunks_and_one_stored_result(connection: Connection) -> None:
    job = Job(prompt="hello", tenant="acme", region="local")
    leases: asyncio.Queue[Lease] = asyncio.Queue()

    async def deliver(delivery: Delivery) -> None:
        leases.put_nowait(Lease(connection, delivery))

    puller = Puller(connection, "local", lambda: 8 - leases.qsize(), deliver)
    pulling = asyncio.create_task(puller.run())
    replies = ReplyStream(connection, "w1")
    await replies.start()
    feed = AnswerFeed(connection)
    chunks: list[Chunk] = []
    ends: asyncio.Queue[Result | Failure] = asyncio.Queue()
    await feed.open("acme", job.id, chunks.append, ends.put_nowait)

    stored = await JobPublisher(connection).publish(job, PriorityClass.P1, publication=1)
    lease = await leases.get()
    assert stored is Publication.STORED
    assert decode(lease.payload, Job) == job
    assert lease.address.job == job.id
    assert lease.attempt == 1

    async with lease.hold():
        for seq, text in enumerate(("one ", "two")):
            await replies.send(
                "acme",
                Chunk(
                    job=job.id,
                    attempt=1,
                    seq=seq,
                    first_index=seq,
                    tokens=[seq],
                    text=text,
                    text_start=4 * seq,
                    channel=Channel.ANSWER,
                    worker="w1",
                ),
            )
        result = Result(
            job=job.id,
            attempt=1,
            worker="w1",
            text="one two",
            tokens=[0, 1],
            finish_reason=FinishReason.STOP,
            usage=Usage(prompt_tokens=1, completion_tokens=2, queue_s=0.1, first_token_s=0.1, total_s=0.2),
        )
        assert await replies.store_end("acme", result)
        assert await lease.ack()

    assert await ends.get() == result
    assert [chunk.text for chunk in chunks] == ["one ", "two"]
    assert await feed.stored_end("acme", job.id) == result
    classes = await read_classes(connection, "local")
    assert [(status.waiting, status.running, status.oldest_s) for status in classes] == [(0, 0, None)] * 5
    puller.stop()
    await pulling
