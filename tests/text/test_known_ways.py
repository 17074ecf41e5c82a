"""From wherever a text or a number stands, what its schema tells of leads out of it."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sparkle.text.exact_numbers import is_multiple
from sparkle.text.known_ways import KnownWays, ways_of_regex, ways_of_schema
from sparkle.text.pattern_texts import MOST_LETTERS, shortest_ways

ATOMS = ("a", "b", r"\.", "[a-c]", r"\d", "[^a0]", "(?:ab|c)", "(x|yz(w)*)", ".", r"\u00e9", r"[\w&-]")


@st.composite
def patterns(draw: st.DrawFn) -> str:
    """Rows of atoms with repeats, of which some are alternatives in a group."""
    pieces = [
        draw(st.sampled_from(ATOMS)) + draw(st.sampled_from(("", "", "*", "+", "?", "{2}", "{1,3}", "{2,}")))
        for _ in range(draw(st.integers(1, 5)))
    ]
    cut = draw(st.integers(0, len(pieces)))
    return f"^{''.join(pieces[:cut])}(?:{'|'.join(pieces[cut:])})$"


@given(patterns(), st.data())
def test_each_beginning_of_a_text_is_led_to_an_end_by_one_of_the_ways(
    pattern: str, data: st.DataObject
) -> None:
    text = data.draw(st.from_regex(pattern, fullmatch=True))
    begun = text[: data.draw(st.integers(0, len(text)))]
    ways = ["", *shortest_ways(pattern)]
    assert any(re.fullmatch(pattern, begun + way) for way in ways)
    assert len(set(ways)) == len(ways)
    assert list(map(len, ways)) == sorted(map(len, ways))


@pytest.mark.parametrize(
    ("pattern", "ways"),
    [
        ("ab$", ["b", "ab"]),
        (r"@e\.org$", ["g", "rg", "org", ".org", "e.org", "@e.org"]),
        (r"^[A-Z]{2,5}-[0-9]+$", ["0", "-0", "A-0", "AA-0"]),
        (r"^\x41\u{42}\t$", ["\t", "B\t", "AB\t"]),
        (r"^\p{Lu}\^[$]$", ["$", "^$", "a^$"]),
        ("", []),
        ("a|", ["a"]),
        ("^a{70}b$", ["b", *("a" * count + "b" for count in range(1, MOST_LETTERS))]),
        ("(" * 101 + "a" + ")" * 101, []),
    ],
)
def test_the_ways_out_of_a_pattern(pattern: str, ways: list[str]) -> None:
    assert shortest_ways(pattern) == ways


@pytest.mark.parametrize(
    "broken", ["(", ")", "(a", "a)", "*", "[", "a{2", "\\", "(?<", "|", "[[a&&b--c||d~~e]"]
)
def test_what_is_no_pattern_tells_what_it_may(broken: str) -> None:
    assert all(len(way) <= MOST_LETTERS for way in shortest_ways(broken))


@given(
    st.one_of(st.integers(1, 10_000), st.decimals("0.01", "99.99", places=2)),
    st.from_regex(r"\A(-?(0|[1-9][0-9]{0,8})?(\.[0-9]{0,3})?)\Z"),
)
def test_all_digits_make_a_number_a_multiple(multiple: int | Decimal, begun: str) -> None:
    assume("." not in begun or re.search("[0-9]", begun.split(".")[0]))
    ways = KnownWays(multiples=(Fraction(multiple),))
    found = list(ways.digits(f'{{"n": {begun}'.encode()))
    for digits in found:
        assert is_multiple(Decimal(begun + digits), multiple), digits
    if isinstance(multiple, int) and "." not in begun:
        # five digits have room for each remainder
        assert found


def test_digits_are_told_of_numbers_alone() -> None:
    ways = KnownWays(multiples=(Fraction(9973),))
    assert next(ways.digits(b'[12, "a", 7')) == "9784"
    # as long as a hot answer may make it
    many = "7" * 5_000
    assert is_multiple(Decimal(many + next(ways.digits(many.encode()))), 9973)
    for written in (b"1e5", b"2.5E-", b"[1e+7"):
        assert list(ways.digits(written)) == []
    assert list(KnownWays().digits(b"12")) == []


def test_a_schema_tells_of_all_its_patterns_and_multiples() -> None:
    schema = {
        "properties": {"a": {"pattern": 'x"$'}, "b": {"multipleOf": 0.25}, "c": {"multipleOf": 3}},
        "patternProperties": {"^n\\t$": {"items": {"pattern": "é$"}}},
    }
    known = ways_of_schema(schema)
    assert {json.loads(f'"{text}"') for text in known.texts} == {'"', "é", 'x"', "\t", "n\t"}
    assert set(known.multiples) == {Fraction(1, 4), Fraction(3)}
    assert known.text_end == '"'
    assert ways_of_regex("[a-z]*ab") == KnownWays(texts=("b", "ab", "aab"), text_end="")
