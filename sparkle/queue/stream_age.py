"""When a stream was made: a later one than a message is not the stream that the message was in."""

from __future__ import annotations

from datetime import datetime

from sparkle.errors import PublishUncertain
from sparkle.queue.api import NO_STREAM, ask
from sparkle.queue.connection import Connection


async def stream_created_s(connection: Connection, stream: str) -> float | None:
    """Unix time at which `stream` was made, by the server's clock; None when there is none.

    Raises NotConnected, or PublishUncertain when the server will not say.
    """
    answer = await ask(connection, f"STREAM.INFO.{stream}")
    if answer.code == NO_STREAM:
        return None
    created = answer.fields.get("created")
    if not isinstance(created, str):
        raise PublishUncertain(f"{stream}: the server does not say when it was made (code {answer.code})")
    return datetime.fromisoformat(created).timestamp()
