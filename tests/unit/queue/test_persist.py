"""A step is tried until the queue does it; every other error, and a cancel, ends it at once."""

from __future__ import annotations

import asyncio
import logging

import pytest

from sparkle.errors import MessageTooLarge, NotConnected, QueueFull, SparkleError, TopologyMissing
from sparkle.queue.persist import persist


class Queue:
    """Fails as told, then answers."""

    def __init__(self, *errors: SparkleError) -> None:
        self._errors = list(errors)
        self.calls: list[str] = []

    async def store(self, what: str) -> bool:
        self.calls.append(what)
        if self._errors:
            raise self._errors.pop(0)
        return False


async def test_what_the_step_returns_is_returned(caplog: pytest.LogCaptureFixture) -> None:
    queue = Queue()
    assert await persist(queue.store, "end") is False
    assert queue.calls == ["end"]
    assert caplog.records == []


async def test_the_queues_errors_are_tried_again_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    queue = Queue(NotConnected("x"), QueueFull("x"), TopologyMissing("x"))
    assert await persist(queue.store, "end") is False
    assert queue.calls == ["end"] * 4
    assert [record.message for record in caplog.records] == ["queue_step_failing", "queue_step_done"]
    assert (vars(caplog.records[0])["step"], vars(caplog.records[1])["tries"]) == ("store", 4)


async def test_another_error_ends_it() -> None:
    queue = Queue(MessageTooLarge("x"))
    with pytest.raises(MessageTooLarge):
        await persist(queue.store, "end")
    assert len(queue.calls) == 1


async def test_a_cancel_ends_it() -> None:
    async def never() -> None:
        raise NotConnected("x")

    task = asyncio.create_task(persist(never))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
