"""Sends usage records to the metering account, which keeps the first one of each job. Knows no job."""

from __future__ import annotations

from sparkle.queue.connection import Connection
from sparkle.schemas import subjects
from sparkle.schemas.codec import encode
from sparkle.schemas.control import UsageRecord

_HEADERS = {
    # a job that came twice is counted once: the server refuses a second record under its subject
    "Nats-Expected-Last-Subject-Sequence": "0",
}


async def send_usage(connection: Connection, record: UsageRecord) -> None:
    """Send it without an answer; where nobody meters it goes nowhere. Raises NotConnected."""
    await connection.publish(_subject(record), encode(record), headers=_HEADERS)


async def store_usage(connection: Connection, record: UsageRecord) -> None:
    """Send it and wait until it, or an earlier one of the job, is stored.

    Raises TopologyMissing where nobody meters, PublishUncertain, NotConnected, QueueFull.
    """
    await connection.publish_stored(_subject(record), encode(record), headers=_HEADERS)


def _subject(record: UsageRecord) -> str:
    return subjects.usage(record.region, record.tenant, record.job)
