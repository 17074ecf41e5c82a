"""How a stored publish goes on when the stream does not answer: the connection's answers are scripted."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from sparkle.errors import NotConnected, PublishUncertain, QueueFull, SparkleError, TopologyMissing
from sparkle.queue.connection import Connection, ConnectionSettings
from sparkle.queue.envelope import Envelope
from sparkle.queue.stored import StoreOutcome
from sparkle.queue.storing import store

STREAMS = json.dumps({"streams": ["JOBS"]}).encode()
NONE = json.dumps({"streams": None}).encode()
NO_LEADER = json.dumps({"error": {"code": 503, "err_code": 10008, "description": "unavailable"}}).encode()


class Scripted(Connection):
    """Answers each publish as told, and each question for streams with the same bytes."""

    def __init__(self, outcomes: list[StoreOutcome | SparkleError], streams: bytes = STREAMS) -> None:
        super().__init__(ConnectionSettings())
        self.publishes = 0
        self._outcomes = outcomes
        self._streams = streams

    async def publish_stored(
        self, subject: str, payload: bytes, *, headers: Mapping[str, str], timeout_s: float | None = None
    ) -> StoreOutcome:
        self.publishes += 1
        outcome = self._outcomes.pop(0)
        if isinstance(outcome, SparkleError):
            raise outcome
        return outcome

    async def request(
        self,
        subject: str,
        payload: bytes = b"",
        *,
        headers: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> Envelope:
        assert subject == "$JS.API.STREAM.NAMES"
        assert json.loads(payload) == {"subject": "jobs.x"}
        return Envelope("inbox", self._streams)


async def stored(connection: Connection, *also: type[SparkleError], give_up_s: float = 5.0) -> StoreOutcome:
    return await store(connection, "jobs.x", b"", {}, also=also, answer_timeout_s=1.0, give_up_s=give_up_s)


async def test_an_uncertain_publish_is_tried_again() -> None:
    connection = Scripted([PublishUncertain("late"), NotConnected("away"), StoreOutcome.DUPLICATE])
    assert await stored(connection) is StoreOutcome.DUPLICATE
    assert connection.publishes == 3


async def test_a_stream_without_a_leader_is_waited_for() -> None:
    connection = Scripted([TopologyMissing("nobody listens"), StoreOutcome.STORED])
    assert await stored(connection) is StoreOutcome.STORED


async def test_a_cluster_that_cannot_tell_is_waited_for() -> None:
    connection = Scripted([TopologyMissing("nobody listens"), StoreOutcome.STORED], NO_LEADER)
    assert await stored(connection) is StoreOutcome.STORED


async def test_a_stream_that_is_not_there_is_said_at_once() -> None:
    connection = Scripted([TopologyMissing("nobody listens"), StoreOutcome.STORED], NONE)
    with pytest.raises(TopologyMissing):
        await stored(connection)
    assert connection.publishes == 1


async def test_a_full_stream_is_said_at_once_unless_one_waits_for_room() -> None:
    with pytest.raises(QueueFull):
        await stored(Scripted([QueueFull("full")]))
    assert await stored(Scripted([QueueFull("full"), StoreOutcome.STORED]), QueueFull) is StoreOutcome.STORED


async def test_in_the_end_the_last_error_is_raised() -> None:
    connection = Scripted([PublishUncertain(str(number)) for number in range(100)])
    with pytest.raises(PublishUncertain, match=r"^[1-9]\d*$"):
        await stored(connection, give_up_s=0.1)


async def test_a_closed_connection_is_not_tried_again() -> None:
    connection = Scripted([NotConnected("closed"), StoreOutcome.STORED])
    connection.closed.set()
    with pytest.raises(NotConnected):
        await stored(connection)
    assert connection.publishes == 1
