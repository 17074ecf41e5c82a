"""Asks the JetStream API: JSON there and back, with the codes that callers decide by. Knows no stream."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from sparkle.errors import NotConnected, PublishUncertain, TopologyMissing
from sparkle.queue.connection import Connection
from sparkle.queue.stored import json_object
from sparkle.schemas import subjects

NO_STREAM = 10059
NO_CONSUMER = 10014


@dataclass(frozen=True, slots=True)
class ApiAnswer:
    """The server's answer: its fields, or a code and the reason of a refusal."""

    fields: Mapping[str, object]
    code: int = 0
    """The server's error code; 0 is none."""

    reason: str = ""
    """The server's own words for the refusal."""

    def table(self, name: str) -> Mapping[str, object]:
        """A nested object; empty when it is missing."""
        return as_table(self.fields.get(name))


async def ask(
    connection: Connection,
    call: str,
    body: Mapping[str, object] | None = None,
    *,
    timeout_s: float | None = None,
) -> ApiAnswer:
    """Call `$JS.API.<call>`. Raises NotConnected when no JetStream answers; a refusal is an answer."""
    payload = json.dumps(body).encode() if body is not None else b""
    try:
        envelope = await connection.request(f"$JS.API.{call}", payload, timeout_s=timeout_s)
    except TopologyMissing:
        raise NotConnected("the server has no JetStream; start nats-server with it") from None
    except PublishUncertain:
        raise NotConnected(
            f"JetStream did not answer {call.partition('.')[0]} in time; it starts, or the user may not ask"
        ) from None
    fields = json_object(envelope.payload)
    error = as_table(fields.get("error"))
    if not error:
        return ApiAnswer(fields)
    code = error.get("err_code") or error.get("code")
    return ApiAnswer(fields, code if isinstance(code, int) else -1, str(error.get("description", "")))


def as_table(value: object) -> Mapping[str, object]:
    """A JSON object, or an empty one."""
    return cast("Mapping[str, object]", value) if isinstance(value, dict) else {}


def as_count(value: object) -> int:
    """A JSON number as a count, or 0."""
    return value if isinstance(value, int) else 0


async def is_consumer_gone(connection: Connection, consumer: str, timeout_s: float) -> bool:
    """Whether the server says that JOBS has no such consumer; not where it cannot tell, as a cluster without
    a leader, or may not be asked.
    """
    try:
        answer = await ask(
            connection, f"CONSUMER.INFO.{subjects.JOBS_STREAM}.{consumer}", timeout_s=timeout_s
        )
    except NotConnected:
        return False
    return answer.code in (NO_CONSUMER, NO_STREAM)


async def is_declared(connection: Connection, subject: str, *, timeout_s: float) -> bool:
    """Whether a stream holds `subject`, though it may not answer now.

    Raises NotConnected also when JetStream cannot tell, as a cluster without a leader.
    """
    answer = await ask(connection, "STREAM.NAMES", {"subject": subject}, timeout_s=timeout_s)
    if answer.code:
        raise NotConnected(f"JetStream cannot tell its streams (code {answer.code}: {answer.reason})")
    return bool(answer.fields.get("streams"))
