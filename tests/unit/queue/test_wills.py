"""An heir hands nothing on over a connection that came back while it asked: the queue may be another one."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from sparkle.errors import TopologyMissing
from sparkle.queue import wills
from sparkle.queue.connection import Connection, ConnectionSettings, Handler, Subscription
from sparkle.queue.envelope import Envelope
from sparkle.queue.wills import Heir
from sparkle.schemas import subjects
from sparkle.schemas.codec import encode
from sparkle.schemas.control import Will

LEASE = "$JS.ACK.JOBS.local-p0.1.1.1.1.0"
PROCESS = "00000000000000aa"


class Line(Connection):
    """Nobody listens at its other end; it is lost, and comes back, with the question of that number."""

    def __init__(self, lost_at: int) -> None:
        super().__init__(ConnectionSettings())
        self.asked: list[str] = []
        self.handler: Handler | None = None
        self._lost_at = lost_at

    async def subscribe(self, subject: str, handler: Handler) -> Subscription:
        self.handler = handler
        return Subscription.__new__(Subscription)

    async def request(
        self,
        subject: str,
        payload: bytes = b"",
        *,
        headers: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> Envelope:
        self.asked.append(subject)
        if len(self.asked) == self._lost_at:
            self.generation += 1
        raise TopologyMissing("nobody is there")


@pytest.mark.parametrize(
    ("lost_at", "handed_on"),
    # of three questions the first, the last, and none
    [(1, []), (3, []), (4, [1])],
)
async def test_only_leases_of_the_queue_that_is_there_are_handed_on(
    lost_at: int, handed_on: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wills, "CHECK_S", 1e-4)
    line, told = Line(lost_at), list[int]()
    heir = Heir(line, "local", "w2", "00000000000000bb", on_handed_on=told.append)
    await heir.start()
    assert line.handler is not None
    will = Will(worker="w1", process=PROCESS, leases=[LEASE])
    await line.handler(Envelope(subjects.will("local", "w2"), encode(will)))
    running = asyncio.create_task(heir.run())
    async with asyncio.timeout(10.0):
        while heir.makers or (handed_on and LEASE not in line.asked):  # noqa: ASYNC110 - a plain value
            await asyncio.sleep(0)
    running.cancel()
    assert told == handed_on
    assert line.asked.count(LEASE) == len(handed_on)
