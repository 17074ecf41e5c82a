"""Prompt lookup against a search through the whole sequence, at every token."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from sparkle.drafting.lookup import CANDIDATES, ENTERED_AT_ONCE, LONGEST, SHORTEST, PromptLookup

# few symbols meet again often; many make long runs rare
TOKENS = st.integers(1, 4).flatmap(lambda most: st.lists(st.integers(0, most), max_size=150))


def repeated(tokens: Sequence[int], place: int) -> int:
    """Tokens in front of `place` that are the last ones too, at most LONGEST."""
    length = 0
    while length < min(LONGEST, place) and tokens[place - length - 1] == tokens[-length - 1]:
        length += 1
    return length


def searched(tokens: Sequence[int], count: int) -> tuple[int, ...]:
    """What the latest of the longest runs was followed by, found by looking at every place."""
    places = [place for place in range(1, len(tokens)) if repeated(tokens, place) >= SHORTEST]
    latest = places[-CANDIDATES:]
    if not latest:
        return ()
    best = max(latest, key=lambda place: (repeated(tokens, place), place))
    known = list(tokens)
    for step in range(count):
        known.append(known[best + step])
    return tuple(known[len(tokens) :])


@settings(max_examples=300, deadline=None)
@given(prompt=TOKENS, answer=TOKENS, count=st.integers(1, 15), step=st.integers(1, 5))
def test_it_finds_what_a_search_finds(prompt: list[int], answer: list[int], count: int, step: int) -> None:
    lookup = PromptLookup()
    lookup.start("a", prompt)
    assert lookup.propose("a", count) == searched(prompt, count)
    for start in range(0, len(answer), step):
        lookup.add("a", answer[start : start + step])
        assert lookup.propose("a", count) == searched(prompt + answer[: start + step], count)


@settings(max_examples=200, deadline=None)
@given(tokens=TOKENS, behind=TOKENS, count=st.integers(1, 15))
def test_behind_guesses_it_goes_on_as_if_they_were_written(
    tokens: list[int], behind: list[int], count: int
) -> None:
    lookup = PromptLookup()
    lookup.start("a", tokens)
    before = lookup.propose("a", count)
    assert lookup.propose("a", count, behind[:15]) == searched(tokens + behind[:15], count)
    # and they leave no trace
    assert lookup.propose("a", count) == before
    lookup.add("a", behind)
    assert lookup.propose("a", count) == searched(tokens + behind, count)


def propose(tokens: Sequence[int], count: int = 4) -> tuple[int, ...]:
    lookup = PromptLookup()
    lookup.start("a", tokens)
    return lookup.propose("a", count)


def test_two_tokens_alike_are_not_enough() -> None:
    assert propose([1, 2, 3, 9, 8, 2, 3]) == ()
    assert propose([1, 2, 3, 9, 8, 1, 2, 3]) == (9, 8, 1, 2)


def test_the_longest_run_wins_and_of_equal_ones_the_latest() -> None:
    assert propose([7, 1, 2, 3, 50, 0, 1, 2, 3, 60, 7, 1, 2, 3], 1) == (50,)
    assert propose([8, 1, 2, 3, 50, 0, 1, 2, 3, 60, 7, 1, 2, 3], 1) == (60,)


def test_a_repetition_goes_on() -> None:
    assert propose([9, *[1, 2, 3] * 3], 8) == (1, 2, 3, 1, 2, 3, 1, 2)
    assert propose([5] * 4, 15) == (5,) * 15


def test_the_earlier_place_may_be_in_the_prompt_and_requests_do_not_meet() -> None:
    lookup = PromptLookup()
    lookup.start("a", [1, 2, 3, 4, 5, 6])
    lookup.start("b", [1, 2, 3, 7, 7, 7])
    for request in ("a", "b"):
        lookup.add(request, [1, 2, 3])
    assert lookup.propose("a", 3) == (4, 5, 6)
    assert lookup.propose("b", 2) == (7, 7)
    lookup.end("b")
    # the same name again is another request
    lookup.start("b", [1, 2])
    lookup.add("b", [3])
    assert lookup.propose("b", 3) == ()
    assert lookup.propose("a", 1) == (4,)


def test_every_place_of_a_long_text_is_found_as_fast() -> None:
    """Of a run that is everywhere, only the latest CANDIDATES places are compared."""
    common = [1, 2, 3]
    far = [90, 91, *common, 100]
    near = [token for number in range(CANDIDATES) for token in (*common, 200 + number)]
    assert propose([*far, *near[4:], 90, 91, *common], 1) == (100,)
    assert propose([*far, *near, 90, 91, *common], 1) == (200 + CANDIDATES - 1,)


def test_a_long_prompt_is_entered_by_several_proposals_and_none_is_made_until_then() -> None:
    lookup = PromptLookup()
    # every token once, and at the end the first ones again
    prompt = [*range(1, 2 * ENTERED_AT_ONCE), 1, 2, 3, 4]
    lookup.start("a", prompt)
    assert [lookup.propose("a", 3) for _ in range(3)] == [(), (), (5, 6, 7)]
    lookup.add("a", [5, 6])
    assert lookup.propose("a", 2) == (7, 8)
    # guesses behind tokens that are not all entered are no tokens of the request's
    lookup.start("b", prompt)
    assert [lookup.propose("b", 3, behind=[5]) for _ in range(3)] == [(), (), (6, 7, 8)]
    assert lookup.propose("b", 3) == (5, 6, 7)
