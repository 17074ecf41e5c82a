"""Sends usage records to the metering account, which keeps the first one of each job. Knows no job."""

from __future__ import annotations

from sparkle.errors import TopologyMissing
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


async def require_meter(connection: Connection, region: str) -> None:
    """Returns where the region's usage records are stored.

    Raises TopologyMissing where nobody stores them, PublishUncertain, NotConnected.
    """
    # for no stream of ours, so that whoever stores records refuses this one
    headers = {"Nats-Expected-Stream": "none"}
    try:
        await connection.request(subjects.usage(region, "none", "none"), headers=headers)
    except TopologyMissing:
        raise TopologyMissing(
            "usage records are to be stored, but nobody stores them; run `sparkle tenants init`, or leave "
            "--metered out"
        ) from None


def _subject(record: UsageRecord) -> str:
    return subjects.usage(record.region, record.tenant, record.job)
