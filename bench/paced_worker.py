"""A worker that writes tokens at a set pace, for as little of a core as can be. Run as a program.

It takes jobs and answers by way of the real queue, as workers do, but builds its chunks without the checks of
the contract: what is measured is who reads them. A job's `max_tokens` are written `pace_ms` apart. A metered
one stores a usage record in front of each end.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from dataclasses import dataclass

from sparkle.queue.connection import Connection, ConnectionSettings
from sparkle.queue.control import HeartbeatSender
from sparkle.queue.delivery import Delivery
from sparkle.queue.lease import Lease
from sparkle.queue.puller import Puller
from sparkle.queue.replies import ReplyStream
from sparkle.queue.usage import store_usage
from sparkle.schemas import subjects
from sparkle.schemas.answer import FinishReason, Result, Usage
from sparkle.schemas.control import Heartbeat, WorkerState
from sparkle.schemas.message import VERSION
from sparkle.schemas.packing import pack, unpack
from sparkle.schemas.subjects import JobAddress
from sparkle.workers.ending import usage_record

REGION, WORKER, MODEL = "local", "paced", "paced"
SLOTS = 512
TEXT = "token "


@dataclass(slots=True)
class Writing:
    """An answer under way."""

    address: JobAddress
    max_tokens: int
    began_s: float
    ended: asyncio.Future[None]
    written: int = 0


class PacedWorker:
    """Answers of one pace."""

    def __init__(self, connection: Connection, pace_ms: float, *, metered: bool) -> None:
        self._metered = metered
        self._connection = connection
        self._pace_s = pace_ms / 1000
        self._replies = ReplyStream(connection, WORKER)
        self._writing: dict[str, Writing] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._puller = Puller(connection, REGION, lambda: SLOTS - len(self._tasks), self._deliver)

    async def run(self) -> None:
        """Answer until ended."""
        beat = HeartbeatSender(self._connection, self._heartbeat, 2.0)
        async with asyncio.TaskGroup() as group:
            group.create_task(beat.run())
            group.create_task(self._puller.run())
            group.create_task(self._write_all())

    async def _deliver(self, delivery: Delivery) -> None:
        task = asyncio.create_task(self._answer(Lease(self._connection, delivery)))
        self._tasks.add(task)
        task.add_done_callback(self._free)

    def _free(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._puller.wake()

    async def _answer(self, lease: Lease) -> None:
        fields, loop = unpack(lease.payload), asyncio.get_running_loop()
        max_tokens = fields["max_tokens"]
        assert isinstance(max_tokens, int)
        writing = Writing(lease.address, max_tokens, loop.time(), loop.create_future())
        async with lease.hold():
            if self._pace_s:
                # the first one at once: it would wait for the loop's next turn, and hide what came before it
                await self._write(writing)
                self._writing[writing.address.job] = writing
                await writing.ended
            else:
                while writing.written < max_tokens:
                    await self._write(writing)
            await self._end(writing)
            await lease.ack()

    async def _end(self, writing: Writing) -> None:
        end, address = _result(writing), writing.address
        if self._metered:
            record = usage_record(end, end.usage, address, worker=WORKER, unix_s=time.time())
            await store_usage(self._connection, record)
        await self._replies.store_end(address.tenant, end)

    async def _write_all(self) -> None:
        """Whatever is due of every answer: one loop for all costs less than one each."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(0.005)
            for job, writing in list(self._writing.items()):
                due = int((loop.time() - writing.began_s) / self._pace_s) + 1
                while writing.written < min(due, writing.max_tokens):
                    await self._write(writing)
                if writing.written == writing.max_tokens:
                    del self._writing[job]
                    writing.ended.set_result(None)

    async def _write(self, writing: Writing) -> None:
        job, index = writing.address.job, writing.written
        writing.written += 1
        fields: dict[str, object] = {
            "kind": "chunk",
            "v": VERSION,
            "job": job,
            "attempt": 1,
            "seq": index,
            "first_index": index,
            "tokens": [index],
            "text": TEXT,
            "text_start": index * len(TEXT),
            "channel": "answer",
            "worker": WORKER,
            "tool_calls": [],
        }
        await self._connection.publish(subjects.reply(writing.address.tenant, job), pack(fields))

    def _heartbeat(self) -> Heartbeat:
        return Heartbeat(
            worker=WORKER,
            region=REGION,
            state=WorkerState.READY,
            model=MODEL,
            slots=SLOTS,
            running=[],
            sent_ms=0,
        )


def _result(writing: Writing) -> Result:
    count = writing.max_tokens
    return Result(
        job=writing.address.job,
        attempt=1,
        worker=WORKER,
        text=TEXT * count,
        tokens=list(range(count)),
        finish_reason=FinishReason.LENGTH,
        usage=Usage(prompt_tokens=1, completion_tokens=count, queue_s=0, first_token_s=0, total_s=0),
    )


async def main() -> None:
    """Be the worker until killed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--nats", required=True)
    parser.add_argument("--pace-ms", type=float, required=True)
    parser.add_argument("--metered", action="store_true")
    arguments = parser.parse_args()
    connection = await Connection.open(ConnectionSettings(url=arguments.nats, name=WORKER))
    await PacedWorker(connection, arguments.pace_ms, metered=arguments.metered).run()


if __name__ == "__main__":
    asyncio.run(main())
