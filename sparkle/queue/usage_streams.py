"""What the metering account holds: usage records and a bucket, in files. Knows neither record nor value."""

from __future__ import annotations

from dataclasses import dataclass

from sparkle.config import require_positive
from sparkle.errors import ConfigError
from sparkle.queue.connection import Connection
from sparkle.queue.key_values import bucket_config
from sparkle.queue.topology import Change, apply_stream
from sparkle.schemas import subjects

BUCKET = "meter"
"""Tenants and their accounts."""

_MIB = 1024 * 1024
_NS_PER_S = 1_000_000_000
_DUPLICATE_WINDOW_S = 1.0
_BUCKET_BYTES = 64 * _MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageSettings:
    """How much is kept of usage records, which are metadata and lie in files."""

    replicas: int = 1
    """Copies of each stream: 1, or 3 on a cluster of three."""

    max_bytes: int = 512 * _MIB
    """Of the records: some 400 bytes each. The oldest go first, so that no job waits for room."""

    max_age_s: float = 30 * 86_400.0
    """How long a record is kept: within this time a gateway, or `sparkle tenants usage`, has to count it."""

    def __post_init__(self) -> None:
        if self.replicas not in (1, 3):
            raise ConfigError(f"replicas is {self.replicas} but must be 1 or 3")
        require_positive(self, "max_bytes", "max_age_s")


async def declare(connection: Connection, settings: UsageSettings) -> list[Change]:
    """Make the account's streams what `settings` say; as often as you like.

    Raises ConfigError where JetStream refuses, as for an account that may store no files; NotConnected.
    """
    return [await apply_stream(connection, config) for config in stream_configs(settings)]


def stream_configs(settings: UsageSettings) -> list[dict[str, object]]:
    """The two streams, in the server's own JSON."""
    shared: dict[str, object] = {"storage": "file", "num_replicas": settings.replicas}
    records: dict[str, object] = {
        "name": subjects.USAGE_STREAM,
        "subjects": [subjects.usage("*", "*", "*")],
        "retention": "limits",
        "discard": "old",
        "max_bytes": settings.max_bytes,
        "max_age": int(settings.max_age_s * _NS_PER_S),
        # a record is known by its subject, not by an id; the server wants this no longer than their age
        "duplicate_window": int(min(_DUPLICATE_WINDOW_S, settings.max_age_s) * _NS_PER_S),
        "allow_direct": True,
    }
    bucket = bucket_config(BUCKET, max_bytes=_BUCKET_BYTES, watched="tenant.*")
    return [{**records, **shared}, {**bucket, **shared}]
