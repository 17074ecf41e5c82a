"""What was stored of an answer goes with its end, also where storing it was cut short; and stops no end."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import cast

import pytest

from sparkle.errors import NotConnected, PublishUncertain
from sparkle.queue.answered import AnswerRecords
from sparkle.queue.connection import Connection
from sparkle.schemas import subjects
from sparkle.schemas.answered import Answered
from sparkle.schemas.ids import new_job_id

TENANT, JOB = "acme", new_job_id()
RECORD = Answered(job=JOB, attempt=1, tokens=[1, 2])
SUBJECT = subjects.answered(TENANT, JOB)


class Line:
    """A connection whose acknowledgements never come, or fail."""

    def __init__(self, fault: Exception | None = None, *, closed: bool = False) -> None:
        self.fault = fault
        self.closed = closed
        self.storing = asyncio.Event()
        self.sent: list[tuple[str, bytes]] = []

    async def publish_stored(self, subject: str, payload: bytes, *, headers: Mapping[str, str]) -> None:
        self.storing.set()
        if self.fault is not None:
            raise self.fault
        await asyncio.Event().wait()

    async def publish(self, subject: str, payload: bytes) -> None:
        if self.closed:
            raise NotConnected("closed")
        self.sent.append((subject, payload))


def records(line: Line) -> AnswerRecords:
    return AnswerRecords(cast(Connection, line))


async def test_one_whose_storing_was_cancelled_is_cleared_with_the_end() -> None:
    line = Line()
    known = records(line)
    storing = asyncio.create_task(known.store(TENANT, RECORD))
    await line.storing.wait()
    storing.cancel()
    await asyncio.wait({storing})
    await known.clear(TENANT, JOB)
    assert line.sent == [(SUBJECT, b"")]
    await known.clear(TENANT, JOB)
    assert len(line.sent) == 1


async def test_one_that_may_or_may_not_be_stored_is_cleared_too() -> None:
    line = Line(PublishUncertain("no answer"))
    known = records(line)
    await known.store(TENANT, RECORD)
    await known.clear(TENANT, JOB)
    assert line.sent == [(SUBJECT, b"")]


async def test_one_that_another_worker_goes_on_with_is_left() -> None:
    line = Line(PublishUncertain("no answer"))
    known = records(line)
    await known.store(TENANT, RECORD)
    known.leave(TENANT, JOB)
    await known.clear(TENANT, JOB)
    assert line.sent == []


async def test_where_it_cannot_be_cleared_the_end_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    known = records(Line(PublishUncertain("no answer"), closed=True))
    await known.store(TENANT, RECORD)
    await known.clear(TENANT, JOB)
    assert [record.message for record in caplog.records] == ["answered_unstored", "answered_uncleared"]
