"""Reads a stream's messages in their order, by no consumer and as often as one likes. Knows no message."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from sparkle.errors import PublishUncertain, TopologyMissing
from sparkle.queue.connection import Connection, Envelope

BATCH = 512
"""Messages of one answer at most: as many of the largest records are far under what may wait for a client."""


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message of a stream."""

    seq: int
    """Its place in the stream; later ones have higher ones."""

    subject: str
    payload: bytes = field(repr=False)


async def batches_after(
    connection: Connection, stream: str, subject: str, after_seq: int, *, batch: int = BATCH
) -> AsyncIterator[list[StoredMessage]]:
    """All messages whose subject matches, behind place `after_seq` (0: from the first one on), in order.

    Raises TopologyMissing without the stream, PublishUncertain when the answer stays away or has a hole,
    NotConnected. A copy of the stream may answer that lacks the last messages: they come the next time.
    """
    while True:
        messages, left = await _Batch(connection).read(
            stream, {"seq": after_seq + 1, "next_by_subj": subject, "batch": batch}
        )
        if messages:
            yield messages
            after_seq = messages[-1].seq
        if not left or not messages:
            return


async def read_after(
    connection: Connection, stream: str, subject: str, after_seq: int, *, batch: int = BATCH
) -> list[StoredMessage]:
    """The same in one list, where they are few."""
    batches = batches_after(connection, stream, subject, after_seq, batch=batch)
    return [message async for messages in batches for message in messages]


class _Batch:
    """One request, and the many messages that answer it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._messages: list[StoredMessage] = []
        self._end: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def read(self, stream: str, wanted: dict[str, object]) -> tuple[list[StoredMessage], int]:
        """The messages, and how many more there are."""
        inbox = self._connection.new_inbox()
        subscription = await self._connection.subscribe(inbox, self._take)
        timeout_s = self._connection.settings.request_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                await self._connection.publish(
                    f"$JS.API.DIRECT.GET.{stream}", json.dumps(wanted).encode(), reply=inbox
                )
                return self._messages, await self._end
        except TimeoutError:
            raise PublishUncertain(f"{stream} did not answer within {timeout_s} s; try again") from None
        finally:
            await subscription.stop()

    async def _take(self, envelope: Envelope) -> None:
        if self._end.done():
            return
        last = _number(envelope, "Nats-Last-Sequence")
        ours = self._messages[-1].seq if self._messages else 0
        match envelope.status:
            case "":
                if last != ours:
                    self._fail(PublishUncertain("a message of the stream got lost on its way; try again"))
                    return
                self._messages.append(
                    StoredMessage(
                        seq=_number(envelope, "Nats-Sequence"),
                        subject=envelope.headers.get("Nats-Subject", ""),
                        payload=envelope.payload,
                    )
                )
            case "204":
                if last == ours:
                    self._end.set_result(_number(envelope, "Nats-Num-Pending"))
                else:
                    self._fail(PublishUncertain("the stream's last messages got lost; try again"))
            case "404":
                self._end.set_result(0)
            case "503":
                self._fail(TopologyMissing("no such stream here; declare it first"))
            case status:
                self._fail(PublishUncertain(f"the stream could not be read (status {status}); try again"))

    def _fail(self, error: PublishUncertain | TopologyMissing) -> None:
        self._end.set_exception(error)


def _number(envelope: Envelope, header: str) -> int:
    text = envelope.headers.get(header, "")
    return int(text) if text.isdecimal() else 0
