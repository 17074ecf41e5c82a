"""Reads the server's answer to a stored publish. Knows its JSON and no connection."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import cast

from sparkle.errors import MessageTooLarge, PublishUncertain, QueueFull, TopologyMissing

# error codes of nats-server (server/errors.json)
_LIMIT_REACHED = 10077
_WRONG_LAST_SEQUENCE = 10071
_OVER_MESSAGE_SIZE = 10054
_OUT_OF_MEMORY = (10023, 10028, 10047)
_OTHER_STREAM = 10060


class StoreOutcome(StrEnum):
    """What the server did with a message that it answered."""

    STORED = "stored"
    DUPLICATE = "duplicate"  #: a message with this id was stored before; nothing was added
    SUBJECT_TAKEN = "subject_taken"  #: the subject holds a message already; this one was refused


def read_ack(data: bytes) -> StoreOutcome:
    """The outcome in a publish acknowledgement.

    Raises QueueFull, MessageTooLarge, TopologyMissing, and PublishUncertain for an answer that only another
    try can settle (no leader, the same id in process).
    """
    answer = json_object(data)
    error = answer.get("error")
    if not isinstance(error, dict):
        if "seq" not in answer:
            raise PublishUncertain("the server's answer to a publish is no acknowledgement; try again")
        return StoreOutcome.DUPLICATE if answer.get("duplicate") else StoreOutcome.STORED
    return _refused(cast("dict[str, object]", error))


def _refused(error: dict[str, object]) -> StoreOutcome:
    code, reason = error.get("err_code"), str(error.get("description", ""))
    # one code for "already queued" and for "queue full": only the text tells them apart
    if code == _WRONG_LAST_SEQUENCE or (code == _LIMIT_REACHED and "per subject" in reason):
        return StoreOutcome.SUBJECT_TAKEN
    if code == _LIMIT_REACHED or code in _OUT_OF_MEMORY:
        raise QueueFull(f"the stream is at its limit ({reason}); wait until workers have caught up")
    if code == _OVER_MESSAGE_SIZE:
        raise MessageTooLarge(f"the message is over the stream's limit ({reason}); shorten it")
    if code == _OTHER_STREAM:
        raise TopologyMissing(f"another stream holds this subject ({reason}); run `sparkle topology apply`")
    raise PublishUncertain(f"the server did not store the message (code {code}: {reason}); try again")


def json_object(data: bytes) -> dict[str, object]:
    """The JSON object in an answer of the server; empty when it is none."""
    try:
        value: object = json.loads(data)
    except ValueError:
        return {}
    return cast("dict[str, object]", value) if isinstance(value, dict) else {}
