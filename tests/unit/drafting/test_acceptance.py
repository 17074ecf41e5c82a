"""Chances of guesses: what is seen moves them the right way; a new request is expected to do as others."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkle.drafting.acceptance import FIRST_CHANCE, REQUEST_MEMORY, Acceptance

CHECKS = st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 4), st.integers(1, 4)), max_size=40)


def chances(acceptance: Acceptance, request: str = "a", count: int = 4) -> list[float]:
    return acceptance.chances(request, ["copy"] * count)


def after(checks: list[tuple[str, int, int]]) -> Acceptance:
    acceptance = Acceptance(4)
    for request, right, drafted in checks:
        right = min(right, drafted)
        acceptance.checked(request, ["copy"] * drafted, right, tried=min(right + 1, drafted))
    return acceptance


def test_what_was_never_tried_is_tried() -> None:
    first = FIRST_CHANCE
    assert chances(Acceptance(4)) == pytest.approx([first, first**2, first**3, first**4])


@given(CHECKS)
def test_chances_fall_along_a_draft(checks: list[tuple[str, int, int]]) -> None:
    found = chances(after(checks))
    assert found[-1] > 0
    assert found[0] < 1
    assert all(later <= earlier for earlier, later in pairwise(found))


@given(CHECKS, st.integers(0, 3))
def test_a_right_guess_raises_its_chance_and_a_wrong_one_lowers_it(
    checks: list[tuple[str, int, int]], place: int
) -> None:
    before = chances(after(checks))
    assert chances(after([*checks, ("a", place + 1, place + 1)]))[place] >= before[place]
    assert chances(after([*checks, ("a", 0, 1)]))[0] <= before[0]


def test_behind_the_answers_end_nothing_is_learned() -> None:
    ended, drafted = Acceptance(4), after([("a", 2, 2)])
    ended.checked("a", ["copy"] * 4, 2, tried=2)
    assert chances(ended) == chances(drafted)


def test_a_request_that_changes_is_soon_seen_to_have_changed() -> None:
    right = after([("a", 4, 4)] * 100)
    assert chances(right)[0] > 0.95
    for _ in range(REQUEST_MEMORY):
        right.checked("a", ["copy"] * 4, 0, tried=1)
    assert chances(right)[0] < 0.5
    for _ in range(REQUEST_MEMORY):
        right.checked("a", ["copy"] * 4, 4, tried=4)
    assert chances(right)[3] > 0.5


def test_a_new_request_is_expected_to_do_as_the_others_until_it_is_known() -> None:
    acceptance = after([("a", 1, 4)] * 60)
    assert chances(acceptance, "new") == pytest.approx([1, 0, 0, 0], abs=0.04)
    for _ in range(8):
        acceptance.checked("new", ["copy"] * 4, 4, tried=4)
    assert chances(acceptance, "new")[3] > 0.3
    # the same name again is another request
    acceptance.end("new")
    assert chances(acceptance, "new")[3] < 0.15
    acceptance.end("never here")


def test_a_proposer_that_goes_on_behind_another_is_known_by_its_own_places() -> None:
    acceptance = Acceptance(4)
    for _ in range(200):
        acceptance.checked("a", ["forced", "forced", "copy", "copy"], 3, tried=4)
    found = acceptance.chances("b", ["forced", "copy", "copy"])
    assert found == pytest.approx([1, 1, 0], abs=0.02)
    assert acceptance.chances("b", ["forced"] * 4)[3] > 0.9
