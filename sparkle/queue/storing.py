"""Publishes to a stream until it is stored; tells a lost stream from one without a leader."""

from __future__ import annotations

from collections.abc import Mapping

from sparkle.errors import NotConnected, SparkleError, TopologyMissing
from sparkle.queue.api import is_declared
from sparkle.queue.connection import Connection
from sparkle.queue.stored import StoreOutcome
from sparkle.queue.tries import tries


async def store(
    connection: Connection,
    subject: str,
    payload: bytes,
    headers: Mapping[str, str],
    *,
    also: tuple[type[SparkleError], ...] = (),
    answer_timeout_s: float,
    give_up_s: float,
) -> StoreOutcome:
    """Publish, and try again after PublishUncertain, NotConnected and the errors in `also`.

    Raises the last of them after `give_up_s`; MessageTooLarge, QueueFull and TopologyMissing at once. A
    second try of a message that was stored is harmless only where `headers` name it (`Nats-Msg-Id`) or its
    subject holds one message.
    """

    async def once() -> StoreOutcome:
        try:
            return await connection.publish_stored(
                subject, payload, headers=headers, timeout_s=answer_timeout_s
            )
        except TopologyMissing:
            # a stream without a leader answers as one that is not there: ask who would know
            if await is_declared(connection, subject, timeout_s=answer_timeout_s):
                raise NotConnected(f"the stream of {subject} has no leader; nothing was stored") from None
            raise

    return await tries(connection, *also, give_up_s=give_up_s)(once)
