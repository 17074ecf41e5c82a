"""How a pull request ends, by its jobs and by the server's status lines."""

from __future__ import annotations

import json

import pytest

from sparkle.queue.envelope import Envelope
from sparkle.queue.pull import Pull, PullEnd, read_status
from sparkle.schemas.priority import PriorityClass


@pytest.mark.parametrize(
    ("status", "reason", "end"),
    [
        ("404", "No Messages", PullEnd.EMPTY),
        ("408", "Request Timeout", PullEnd.EMPTY),
        ("409", "Leadership Change", PullEnd.MOVED),
        ("409", "Server Shutdown", PullEnd.MOVED),
        ("409", "Consumer Deleted", PullEnd.MISSING),
        ("409", "Exceeded MaxWaiting", PullEnd.REFUSED),
        ("409", "Message Size Exceeds MaxBytes", PullEnd.REFUSED),
        ("400", "Bad Request", PullEnd.REFUSED),
        ("503", "", PullEnd.MISSING),
        ("100", "Idle Heartbeat", None),
    ],
)
def test_each_status_has_one_meaning(status: str, reason: str, end: PullEnd | None) -> None:
    assert read_status(Envelope("_INBOX.x.1", b"", {"Status": status, "Description": reason})) is end


async def test_a_request_ends_with_its_last_job_and_only_once() -> None:
    pull = Pull(PriorityClass.P0, "_INBOX.x.1", 2)
    pull.take()
    assert not pull.ended.done()
    pull.take()
    pull.end(PullEnd.LOST)
    assert await pull.ended is PullEnd.FILLED


async def test_a_request_waits_only_when_it_says_how_long() -> None:
    assert json.loads(Pull(PriorityClass.P0, "i", 3).body()) == {"batch": 3, "no_wait": True}
    assert json.loads(Pull(PriorityClass.P0, "i", 1, 1.5).body()) == {"batch": 1, "expires": 1_500_000_000}
