"""Simulated drafts: as many guesses are right as was given, and passes are as wide as pays."""

from __future__ import annotations

import pytest

from bench.simulated_drafts import SimulatedDrafts, no_guesses

PASSES = 20_000


def widths(drafts: SimulatedDrafts, sequences: int, room: int = 15) -> set[int]:
    return {
        1 + len(draft) for draft in drafts.choose(dict.fromkeys(map(str, range(sequences)), room)).values()
    }


@pytest.mark.parametrize("kept", [1.0, 3.0, 5.0, 8.0])
def test_seven_guesses_write_as_many_tokens_as_was_given(kept: float) -> None:
    drafts = SimulatedDrafts(kept, lambda _sequences, _width: 1.0)
    written = sum(1 + drafts.right(7) for _ in range(PASSES)) / PASSES
    assert written == pytest.approx(kept, rel=0.02)


@pytest.mark.parametrize("kept", [0.9, 8.1])
def test_what_seven_guesses_cannot_write_is_refused(kept: float) -> None:
    with pytest.raises(ValueError, match=f"kept is {kept} but must be 1 to 8"):
        SimulatedDrafts(kept, lambda _sequences, _width: 1.0)


@pytest.mark.parametrize(("cost_ms", "width"), [(3.9, 16), (4.1, 4)])
def test_the_width_with_the_most_tokens_a_second_is_taken(cost_ms: float, width: int) -> None:
    # sixteen of sixteen, or four of four in a millisecond
    costs_ms = {1: 1.0, 4: 1.0, 8: 9.0, 16: cost_ms}
    assert widths(SimulatedDrafts(8.0, lambda _sequences, wide: costs_ms[wide]), 1) == {width}


def test_a_pass_is_no_wider_than_its_graph_and_a_draft_than_its_room() -> None:
    drafts = SimulatedDrafts(8.0, lambda _sequences, _width: 1.0)
    assert [widths(drafts, count) for count in (8, 9, 16, 17, 32, 33, 64)] == [
        {16},
        {8},
        {8},
        {4},
        {4},
        {2},
        {2},
    ]
    assert widths(drafts, 8, room=2) == {3}
    assert drafts.choose({}) == {}


def test_without_guesses_one_token_is_written() -> None:
    assert widths(no_guesses(), 1) == {1}
