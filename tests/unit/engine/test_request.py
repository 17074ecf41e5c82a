"""Every pair of states, and when an answer ends."""

from __future__ import annotations

import itertools

import pytest

from sparkle.engine.request import LEGAL, Request, RequestState
from sparkle.errors import IllegalMove
from sparkle.schemas.answer import FinishReason
from sparkle.schemas.priority import PriorityClass

W, R, D, E = RequestState.WAITING, RequestState.READING, RequestState.DECODING, RequestState.ENDED
# written out once more on purpose: the table in the code must not be its own proof
MOVES = {(W, R), (W, E), (R, D), (R, W), (R, E), (D, W), (D, E)}


def request(max_answer_tokens: int = 3) -> Request:
    return Request(
        id="a",
        prompt=(1, 2),
        max_answer_tokens=max_answer_tokens,
        stop_tokens=frozenset({7, 8}),
        priority=PriorityClass.P1,
        arrived_s=0.0,
    )


@pytest.mark.parametrize(("before", "after"), [*itertools.product(RequestState, repeat=2)])
def test_every_pair_of_states(before: RequestState, after: RequestState) -> None:
    moved = request()
    moved.state = before
    if (before, after) in MOVES:
        moved.move_to(after)
        assert moved.state is after
    else:
        with pytest.raises(IllegalMove, match=f"from {before} to {after}"):
            moved.move_to(after)
        assert moved.state is before


def test_one_that_gave_way_reads_its_answer_too() -> None:
    moved = request(max_answer_tokens=9)
    moved.move_to(R)
    moved.computed = 1
    assert (moved.reading_tokens, moved.unread_tokens) == (2, 1)
    moved.move_to(D)
    moved.computed, moved.answer = 4, [5, 6, 5]
    assert moved.unread_tokens == 0
    moved.give_way()
    assert (moved.state, moved.computed, moved.preemptions) == (W, 0, 1)
    assert (moved.reading_tokens, moved.unread_tokens) == (5, 5)
    moved.move_to(R)
    moved.computed = 4
    assert moved.unread_tokens == 1


def test_every_state_has_a_row() -> None:
    assert set(LEGAL) == set(RequestState)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ([5], None),
        ([7], FinishReason.STOP),
        ([5, 8], FinishReason.STOP),
        ([5, 5], None),
        ([5, 5, 5], FinishReason.LENGTH),
        ([5, 5, 7], FinishReason.STOP),
    ],
)
def test_finish_reason(answer: list[int], reason: FinishReason | None) -> None:
    written = request()
    written.answer = answer
    assert written.finish_reason() is reason


def test_worst_case_is_prompt_and_longest_answer() -> None:
    assert request(max_answer_tokens=5).worst_case_tokens == 7


@pytest.mark.parametrize(("computed", "unread"), [(0, 2), (1, 1), (2, 0), (4, 0)])
def test_unread_is_the_rest_of_the_prompt_and_never_less_than_nothing(computed: int, unread: int) -> None:
    read = request()
    read.computed = computed
    assert read.unread_tokens == unread
