"""Stop strings are found whole wherever the text is cut, and nothing more is held back than must be."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sparkle.text.stop_strings import StopStrings

# three letters, so that stops overlap, contain and begin each other all the time
words = st.text("abc", max_size=40)
stop_lists = st.lists(st.text("abc", min_size=1, max_size=5), max_size=5)


def cut(text: str, places: Sequence[int]) -> list[str]:
    """`text` in pieces, cut at `places` (modulo its length)."""
    edges = sorted({0, len(text), *(place % (len(text) + 1) for place in places)})
    return [text[start:end] for start, end in pairwise(edges)]


def expected(text: str, stops: Sequence[str]) -> tuple[str, bool]:
    """By definition: the shortest beginning of `text` that ends with a stop string, without that string."""
    for end in range(len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            return text[: end - max(map(len, ending))], True
    return text, False


def must_hold(text: str, stops: Sequence[str]) -> int:
    """Length of the longest end of `text` that is a beginning of a stop string, by definition."""
    return max(
        (
            length
            for length in range(len(text) + 1)
            if any(s.startswith(text[len(text) - length :]) for s in stops)
        ),
        default=0,
    )


@given(words, stop_lists, st.lists(st.integers(0, 40)))
@example("aabab", ["abab", "bab"], [2])
@example("abcabcabd", ["abcabd"], [3, 5])
def test_cut_anywhere_the_text_before_the_first_stop_comes_out(
    text: str, stops: list[str], places: list[int]
) -> None:
    strings = StopStrings(stops)
    out, stopped, seen = "", False, ""
    for piece in cut(text, places):
        final, stopped = strings.push(piece)
        seen += piece
        out += final
        if stopped:
            break
        # all that may be final is out, and no more
        assert out == seen[: len(seen) - must_hold(seen, stops)]
    if not stopped:
        out += strings.finish()
    assert (out, stopped) == expected(text, stops)


@pytest.mark.parametrize(
    ("stops", "pieces", "outs"),
    [
        pytest.param(["END"], ["the E", "N", "emy END", "x"], ["the ", "", "ENemy "], id="false start"),
        pytest.param(["\n\n"], ["a\n", "b\n", "\nc"], ["a", "\nb", ""], id="newlines"),
        pytest.param(["abcd", "bc"], ["ab", "c"], ["", "a"], id="the inner one is complete first"),
        pytest.param(["b", "ab"], ["xab"], ["x"], id="the longer of two that end together"),
        pytest.param(["é🙂"], ["é", "🙂"], ["", ""], id="more than ascii"),
    ],
)
def test_pieces(stops: list[str], pieces: list[str], outs: list[str]) -> None:
    strings = StopStrings(stops)
    found = [strings.push(piece) for piece in pieces[: len(outs)]]
    assert [text for text, _ in found] == outs
    assert [stopped for _, stopped in found] == [False] * (len(outs) - 1) + [True]


def test_without_stop_strings_nothing_is_held_back() -> None:
    strings = StopStrings([])
    assert strings.push("anything\n") == ("anything\n", False)
    assert strings.finish() == ""


def test_what_is_held_back_comes_at_the_end_once() -> None:
    strings = StopStrings(["stop"])
    assert strings.push("to sto") == ("to ", False)
    assert strings.finish() == "sto"
    assert strings.finish() == ""
