"""Width control: never wider than there is something for, as wide as pays, and bounded where nothing does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkle.drafting.acceptance import Acceptance
from sparkle.drafting.budget import Budget
from sparkle.drafting.width import LOSING_PASSES, LOSING_SHARE, PLAIN, TRYING_SHARE, WidthControl

WIDTHS = (1, 4, 8, 16)


class Table:
    """Costs that stay as they are: the same for any number of sequences."""

    def __init__(self, ms: Mapping[int, float], draft_ms: float = 0.0) -> None:
        self._ms = ms
        self._draft_ms = draft_ms
        self.took_ms: list[tuple[int, int, float, bool]] = []

    def widths(self, sequences: int) -> Sequence[int]:
        return sorted(self._ms)

    def ms(self, sequences: int, width: int, *, guesses: bool) -> float:
        assert width > 1 or not guesses
        drafted = self._draft_ms if guesses else 0.0
        return drafted + self._ms[next(room for room in sorted(self._ms) if room >= width)]

    def took(self, sequences: int, width: int, took_ms: float, *, guesses: bool) -> None:
        self.took_ms.append((sequences, width, took_ms, guesses))


def control(ms: Mapping[int, float], right: Mapping[str, int] | None = None, tries: int = 50) -> WidthControl:
    """One that has seen each request keep so many of fifteen guesses, many times, and has nothing to try."""
    acceptance = Acceptance(15)
    for request, kept in (right or {}).items():
        for _ in range(tries):
            acceptance.checked(request, ["model"] * 15, kept, tried=min(kept + 1, 15))
    return WidthControl(Table(ms), acceptance)


def settled(chooser: WidthControl, sequences: int, offered: Mapping[str, Sequence[str]]) -> int:
    """What it chooses once it has tried what it may."""
    return [chooser.choose(sequences, offered, guesses=False) for _ in range(100)][-1]


def offers(**lengths: int) -> dict[str, list[str]]:
    return {request: ["model"] * length for request, length in lengths.items()}


NEARLY_FREE = {1: 8.0, 4: 8.2, 8: 8.4, 16: 8.8}
DEAR = {1: 8.0, 4: 16.0, 8: 40.0, 16: 100.0}


def test_what_is_right_is_drafted_as_far_as_it_is() -> None:
    assert settled(control(NEARLY_FREE, {"a": 15}), 1, offers(a=15)) == 16
    assert settled(control(NEARLY_FREE, {"a": 3}), 1, offers(a=15)) == 4
    assert settled(control(DEAR, {"a": 15}), 1, offers(a=15)) == 4
    assert settled(control(DEAR, {"a": 0}), 1, offers(a=15)) == PLAIN


def test_a_width_further_is_tried_first() -> None:
    chooser = control(DEAR, {"a": 15})
    assert [chooser.choose(1, offers(a=15), guesses=False) for _ in range(4)] == [8, 4, 4, 4]


def test_without_a_draft_the_pass_is_plain() -> None:
    assert control(NEARLY_FREE).choose(3, {}, guesses=False) == PLAIN


def test_no_wider_than_the_longest_draft() -> None:
    chooser = control(NEARLY_FREE, {"a": 15, "b": 15})
    assert chooser.choose(2, offers(a=2, b=3), guesses=False) == 4
    assert chooser.choose(2, offers(a=1), guesses=False) == 4
    assert chooser.choose(2, offers(a=2, b=4), guesses=False) == 8


def test_neighbours_that_draft_nothing_are_not_made_slower_for_one_that_does() -> None:
    ms = {1: 8.0, 4: 12.0}
    assert settled(control(ms, {"a": 15}), 1, offers(a=3)) == 4
    assert settled(control(ms, {"a": 15}), 2, offers(a=3)) == 4
    # 11 tokens in 12 ms would be fewer than 8 in 8
    assert settled(control(ms, {"a": 15}), 8, offers(a=3)) == PLAIN
    # 7 tokens in 12 ms would be as many as 4 in 7: but three of four wait half as long again
    assert settled(control(ms, {"a": 15}), 4, offers(a=3)) == PLAIN


def spent_on_trying(passes: int) -> float:
    """What passes of guesses that are always wrong took more than plain ones, as a share of these."""
    acceptance = Acceptance(15)
    chooser = WidthControl(Table(DEAR), acceptance)
    took = 0.0
    for _ in range(passes):
        width = chooser.choose(1, offers(a=15), guesses=False)
        if width > 1:
            acceptance.checked("a", ["model"] * (width - 1), 0, tried=1)
        chooser.passed(1, width, guesses=False, kept_tokens=1, took_ms=None)
        took += DEAR[width] / DEAR[1]
    return took / passes - 1


def test_wrong_guesses_are_tried_again_and_cost_their_share() -> None:
    share = spent_on_trying(4000)
    assert TRYING_SHARE / 2 < share < TRYING_SHARE + 0.003
    assert share < LOSING_SHARE


def test_guesses_that_become_right_are_found() -> None:
    acceptance = Acceptance(15)
    chooser = WidthControl(Table({1: 8.0, 4: 10.0}), acceptance)
    widths: list[int] = []
    for turn in range(1000):
        width = chooser.choose(1, offers(a=3), guesses=False)
        right = width - 1 if turn >= 500 else 0
        if width > 1:
            acceptance.checked("a", ["model"] * (width - 1), right, tried=min(right + 1, width - 1))
        chooser.passed(1, width, guesses=False, kept_tokens=1 + right, took_ms=None)
        widths.append(width)
    # a trial costs a quarter of a pass
    assert 2 <= widths[400:500].count(4) <= 5
    assert widths[600:] == [4] * 400


def test_times_of_passes_are_told_to_the_costs() -> None:
    table = Table(DEAR)
    chooser = WidthControl(table, Acceptance(15))
    chooser.passed(3, 4, guesses=False, kept_tokens=5, took_ms=17.0)
    chooser.passed(2, 1, guesses=False, kept_tokens=2, took_ms=None)
    chooser.passed(2, 4, guesses=True, kept_tokens=2, took_ms=19.0)
    assert table.took_ms == [(3, 4, 17.0, False), (2, 4, 19.0, True)]


def test_guesses_must_earn_the_draft_models_time_too() -> None:
    acceptance = Acceptance(15)
    for _ in range(50):
        acceptance.checked("a", ["copy"] * 3, 1, tried=2)
    chooser = WidthControl(Table({1: 8.0, 4: 10.0}, draft_ms=8.0), acceptance)
    # two tokens in 10 ms, or in 18
    assert [chooser.choose(1, {"a": ["copy"] * 3}, guesses=False) for _ in range(100)][-1] == 4
    assert [chooser.choose(1, {"a": ["copy"] * 3}, guesses=True) for _ in range(100)][-1] == PLAIN


@settings(max_examples=60, deadline=None)
@given(
    sequences=st.integers(1, 8),
    grows=st.lists(st.floats(1.0, 6.0), min_size=3, max_size=3),
    lengths=st.lists(st.integers(0, 15), min_size=8, max_size=8),
    kindness=st.lists(st.integers(0, 15), min_size=1, max_size=9),
)
def test_whatever_is_kept_the_loss_is_bounded(
    sequences: int, grows: list[float], lengths: list[int], kindness: list[int]
) -> None:
    """What is right comes and goes, and ends where a pass is wider than plain passes let expect."""
    ms = {1: 1.0, 4: grows[0], 8: grows[0] * grows[1], 16: grows[0] * grows[1] * grows[2]}
    acceptance = Acceptance(15)
    chooser = WidthControl(Table(ms), acceptance)
    offered = {f"r{place}": ["model"] * length for place, length in enumerate(lengths[:sequences]) if length}
    took = plain = 0.0
    for kept in kindness * (80 // len(kindness)):
        width = chooser.choose(sequences, offered, guesses=False)
        longest = max(map(len, offered.values()), default=0)
        assert width in WIDTHS
        assert width == PLAIN or max(room for room in (0, *WIDTHS) if room < width) < 1 + longest
        tokens = sequences
        for request, sources in offered.items():
            drafted = min(width - 1, len(sources))
            right = min(kept, drafted)
            if drafted:
                acceptance.checked(request, sources[:drafted], right, tried=min(right + 1, drafted))
            tokens += right
        chooser.passed(sequences, width, guesses=False, kept_tokens=tokens, took_ms=None)
        took += ms[width]
        plain += tokens / sequences
        # a draft that costs more than can be saved up is checked once that is there
        beyond = max(0.0, ms[16] - 1 - LOSING_PASSES)
        assert took <= plain + LOSING_SHARE * took + LOSING_PASSES + beyond + 1e-9


def test_a_budget_is_earned_spent_and_saved_up_to_its_limit() -> None:
    budget = Budget(0.5, saved=2)
    assert budget.pays_for(2)
    budget.spend(1.5)
    assert budget.pays_for(0.5)
    assert not budget.pays_for(0.6)
    budget.earn(2)
    assert budget.pays_for(1.5)
    assert not budget.pays_for(1.6)
    budget.earn(100)
    # what costs more than there can be is paid by all there can be, and owed
    assert budget.pays_for(7)
    budget.spend(7)
    budget.earn(8)
    assert not budget.pays_for(0.01)
    budget.earn(2.1)
    assert budget.pays_for(0.01)
    # a gain, of which no more is kept than can be saved up
    budget.spend(-50)
    budget.spend(1)
    assert not budget.pays_for(1.1)


@pytest.mark.parametrize("price", [0.0, -1.0])
def test_what_costs_nothing_may_be_had_whatever_is_owed(price: float) -> None:
    budget = Budget(0.1, saved=1)
    budget.spend(3)
    assert budget.pays_for(price)
