"""Calls grow by pieces that join up; those that came to their end are in the result."""

from __future__ import annotations

from typing import Any

import pytest

from sparkle.errors import EngineError
from sparkle.schemas.ids import new_job_id
from sparkle.schemas.tools import ToolCall, ToolCallDelta
from sparkle.workers.calls import CallsSoFar, call_id

JOB = new_job_id()
PIECES: list[list[Any]] = [
    [0, "get", "", 0],
    [0, None, '{"a": "x', 0],
    [0, None, 'y"}', 8],
    [1, "stop", "{}", 0],
]


def test_whole_calls_are_in_the_result() -> None:
    calls = CallsSoFar(JOB)
    calls.add(PIECES[:2])
    assert calls.is_cut
    calls.add(PIECES[2:])
    assert not calls.is_cut
    assert calls.whole() == [
        ToolCall(id=call_id(JOB, 0), name="get", arguments={"a": "xy"}),
        ToolCall(id=call_id(JOB, 1), name="stop", arguments={}),
    ]


@pytest.mark.parametrize("end", [1, 2])
def test_a_cut_call_is_not(end: int) -> None:
    calls = CallsSoFar(JOB)
    calls.add(PIECES[:end])
    assert calls.is_cut
    assert calls.whole() == []


def test_the_first_piece_has_an_id_that_every_attempt_gives() -> None:
    deltas = CallsSoFar(JOB).deltas(PIECES)
    assert deltas[:2] == [
        ToolCallDelta(index=0, id=call_id(JOB, 0), name="get"),
        ToolCallDelta(index=0, arguments='{"a": "x'),
    ]
    assert CallsSoFar(JOB).deltas(PIECES) == deltas
    ids = [call_id(job, index) for job in (JOB, new_job_id()) for index in range(3)]
    assert len({*ids}) == 6


@pytest.mark.parametrize(
    "piece", [[0, None, "x", 7], [0, None, "x", 9], [1, None, "x", 0], [2, "f", "", 0], [0, "f", "x", 0]]
)
def test_a_piece_that_does_not_join_up_is_refused(piece: list[Any]) -> None:
    calls = CallsSoFar(JOB)
    calls.add(PIECES[:2])
    with pytest.raises(EngineError, match=f"piece of call {piece[0]} starts at character {piece[3]}"):
        calls.add([piece])
