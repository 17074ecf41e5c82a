"""When a stream's oldest message was stored: one from before that is no longer in it."""

from __future__ import annotations

from datetime import datetime

from sparkle.errors import PublishUncertain
from sparkle.queue.api import NO_STREAM, as_count, ask
from sparkle.queue.connection import Connection


async def oldest_stored_s(connection: Connection, stream: str) -> float | None:
    """Unix time at which the oldest message in `stream` was stored, by the server's clock; None without one.

    Raises NotConnected, or PublishUncertain when the server will not say.
    """
    answer = await ask(connection, f"STREAM.INFO.{stream}")
    if answer.code == NO_STREAM:
        return None
    state = answer.table("state")
    first = state.get("first_ts")
    if not isinstance(first, str):
        raise PublishUncertain(f"{stream}: the server does not say how old it is (code {answer.code})")
    return datetime.fromisoformat(first).timestamp() if as_count(state.get("messages")) else None
