"""Cancels that nobody waits for: told until the queue holds them, however long it is away, within a bound."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field

import pytest

from sparkle.errors import NotConnected, TopologyMissing
from sparkle.producers.cancels import Cancels
from sparkle.queue import persist


@dataclass
class Queue:
    """Refuses the first cancels of each job, then holds them."""

    refusals: int
    tries: list[str] = field(default_factory=list[str])
    held: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])

    async def cancel(self, tenant: str, job: str) -> None:
        self.tries.append(job)
        if self.tries.count(job) <= self.refusals:
            raise NotConnected("the server is away") if self.refusals % 2 else TopologyMissing("no stream")
        self.held.append((tenant, job))


@pytest.mark.parametrize("refusals", [0, 7, 8])
async def test_a_cancel_is_told_until_the_queue_holds_it(
    refusals: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(persist, "_FIRST_WAIT_S", 1e-4)
    monkeypatch.setattr(persist, "_MAX_WAIT_S", 1e-3)
    queue = Queue(refusals)
    await Cancels(queue.cancel).tell("acme", "a")
    assert queue.tries == ["a"] * (refusals + 1)
    assert queue.held == [("acme", "a")]


async def test_no_more_wait_than_the_bound_and_all_end_with_the_client(
    caplog: pytest.LogCaptureFixture,
) -> None:
    queue = Queue(refusals=10**9)
    waiting = Cancels(queue.cancel, max_pending=3)
    with caplog.at_level(logging.WARNING):
        tasks = [asyncio.create_task(waiting.tell("acme", str(number))) for number in range(5)]
        done, pending = await asyncio.wait(tasks, timeout=0.05)
    assert (len(done), len(pending)) == (2, 3)
    assert [record.getMessage() for record in caplog.records].count("cancel_let_go") == 2
    for task in pending:
        task.cancel()
    await asyncio.wait(pending)
    queue.refusals = 0
    # the places of those that were ended are free again
    await waiting.tell("acme", "after")
    assert queue.held == [("acme", "after")]
