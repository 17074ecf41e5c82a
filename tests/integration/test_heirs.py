"""Workers find their heirs as they hear of each other, before either has to do with a job."""

from __future__ import annotations

import logging

import pytest

from sparkle.queue import wills
from sparkle.queue.connection import Connection
from sparkle.queue.local import LocalServer
from sparkle.workers import settings
from tests.conftest import Eventually
from tests.worker_at_work import at_work

NEVER_S = 10_000.0


async def test_a_newcomer_and_one_that_was_alone_have_each_other_at_once(
    connection: Connection,
    nats_server: LocalServer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    eventually: Eventually,
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(settings, "HEARTBEAT_S", NEVER_S)
    monkeypatch.setattr(wills, "WILL_S", NEVER_S)

    def found() -> set[str]:
        told = [record for record in caplog.records if record.message == "heir_found"]
        return {str(vars(record)["heir"]) for record in told}

    async with (
        at_work(nats_server.url, name="w-1", heartbeat_s=NEVER_S),
        at_work(nats_server.url, name="w-2", heartbeat_s=NEVER_S),
    ):
        await eventually(lambda: found() == {"w-1", "w-2"})
