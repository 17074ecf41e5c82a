"""A bucket of values by key in a stream; each write names the revision that it replaces. Knows no value.

It is NATS's own form of a bucket (ADR-8), so that other tools can look at it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field

from sparkle.errors import PublishUncertain, TopologyMissing
from sparkle.queue.connection import Connection, Envelope, Subscription
from sparkle.queue.stored import StoreOutcome, json_object, read_ack
from sparkle.queue.stored_messages import read_after


@dataclass(frozen=True, slots=True)
class Entry:
    """A value as it stands."""

    key: str
    value: bytes = field(repr=False)
    revision: int
    """Names this write: what a later one says that it replaces."""


class KeyValues:
    """One bucket. Every method raises TopologyMissing without it, NotConnected and PublishUncertain."""

    def __init__(self, connection: Connection, bucket: str) -> None:
        self._connection = connection
        self._bucket = bucket
        self._stream = stream_name(bucket)

    async def get(self, key: str) -> Entry | None:
        """The value of `key`, or None. A copy of the bucket may answer that lacks the last write."""
        with self._declared():
            answer = await self._connection.request(
                f"$JS.API.DIRECT.GET.{self._stream}.{_subject(self._bucket, key)}"
            )
        if answer.status == "404":
            return None
        if answer.status:
            raise PublishUncertain(f"{self._stream} could not be read (status {answer.status}); try again")
        return Entry(key, answer.payload, _sequence(answer))

    async def put(self, key: str, value: bytes, *, revision: int) -> int | None:
        """Write over `revision` (0: the key is new), and give the new one; None when another was faster.

        After PublishUncertain it may be written or not. Raises QueueFull at the bucket's limit.
        """
        with self._declared():
            answer = await self._connection.request(
                _subject(self._bucket, key),
                value,
                headers={"Nats-Expected-Last-Subject-Sequence": str(revision)},
            )
        if read_ack(answer.payload) is StoreOutcome.SUBJECT_TAKEN:
            return None
        written = json_object(answer.payload)["seq"]
        assert isinstance(written, int), "an acknowledgement has its sequence"
        return written

    async def matching(self, pattern: str) -> list[Entry]:
        """All entries whose key matches, as `tenant.*`."""
        with self._declared():
            messages = await read_after(
                self._connection, self._stream, _subject(self._bucket, pattern), after_seq=0
            )
        prefix = _subject(self._bucket, "")
        return [Entry(one.subject.removeprefix(prefix), one.payload, one.seq) for one in messages]

    async def watch(self, pattern: str, handler: Callable[[Entry], Awaitable[None]]) -> Subscription:
        """Call `handler` with each entry whose key matches as soon as it is written; one can get lost."""
        prefix = changed(self._bucket, "")

        async def take(envelope: Envelope) -> None:
            key = envelope.subject.removeprefix(prefix)
            await handler(Entry(key, envelope.payload, _sequence(envelope)))

        return await self._connection.subscribe(changed(self._bucket, pattern), take)

    @contextmanager
    def _declared(self) -> Generator[None]:
        try:
            yield
        except TopologyMissing:
            raise TopologyMissing(
                f"there is no bucket {self._bucket} at {self._connection.settings.shown}; run "
                "`sparkle tenants init`, and see that the address is the metering account's"
            ) from None


def bucket_config(bucket: str, *, max_bytes: int, watched: str) -> dict[str, object]:
    """The stream of a bucket, in the server's own JSON; keys that match `watched` can be watched."""
    return {
        "name": stream_name(bucket),
        "subjects": [_subject(bucket, ">")],
        "retention": "limits",
        "discard": "new",
        "max_msgs_per_subject": 1,
        "max_bytes": max_bytes,
        "allow_direct": True,
        "allow_rollup_hdrs": True,
        "deny_delete": True,
        # told once it is written: a write that was refused is on the key's own subject as well
        "republish": {"src": _subject(bucket, watched), "dest": changed(bucket, _mapped(watched))},
    }


def stream_name(bucket: str) -> str:
    """The stream that holds a bucket."""
    return f"KV_{bucket}"


def changed(bucket: str, key: str) -> str:
    """Where writes of a key are told."""
    return f"{bucket}.changed.{key}"


def _subject(bucket: str, key: str) -> str:
    return f"$KV.{bucket}.{key}"


def _mapped(pattern: str) -> str:
    """The same key behind the arrow of a republish: the server numbers the wildcards."""
    tokens, number = list[str](), 0
    for token in pattern.split("."):
        number += token == "*"
        tokens.append(f"{{{{wildcard({number})}}}}" if token == "*" else token)
    return ".".join(tokens)


def _sequence(envelope: Envelope) -> int:
    text = envelope.headers.get("Nats-Sequence", "")
    if not text.isdecimal():
        raise PublishUncertain("the bucket's answer has no revision; try again")
    return int(text)
