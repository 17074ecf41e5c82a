"""A pattern lets through in the grammar what it lets through in JavaScript."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sparkle.errors import UnsupportedSchema
from sparkle.text.pattern_dialect import UNWRITABLE, served_pattern
from tests.text.matched import compiled, lets_through

LETTERS = [*map(chr, range(0x100)), *"٣ßא\u2028\ufeff\u3000😀😁", "", "ab", '""', "\\\\"]
MEMBERS = ["\\\\", '"', "a", "1-9", r"\d", r"\W", r"\-", "é", "!-/", r"\x00-z"]
WRITABLE = [text for text in LETTERS if UNWRITABLE.isdisjoint(text)]


def let_through(pattern: str) -> set[str]:
    grammar = compiled({"type": "string", "pattern": pattern})
    return {text for text in LETTERS if lets_through(grammar, json.dumps(text, ensure_ascii=False))}


@pytest.mark.parametrize(
    "pattern",
    [
        '^[^"]$',
        r"^[^\\]$",
        r'^[^"\\]*$',
        r"^[\x00-\x1f]$",
        r"^[\x00-z]$",
        "^[!-/]$",
        r"^\D$",
        r'^[^\w"]$',
        r"^\w$",
        r"^[\w.-]$",
        r"^[\d\-+]$",
        '^[^"]{1,2}$',
        '^(?:[^"]|ab)+$',
        "^[😀-😂]$",
        "^[$^.|]$",
        r"^\$\^\/\-$|^\<$",
        "^]$",
        "^(|a)b?$",
        "a|b",
        "^a|b$",
    ],
)
def test_what_python_reads_alike_lets_the_same_through(pattern: str) -> None:
    read = re.compile(pattern.replace("$", r"\Z") if "[$" not in pattern else pattern, re.ASCII)
    assert let_through(pattern) == {text for text in WRITABLE if read.search(text)}


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        (r"^\s$", set("\t\n\f\r \xa0\u2028\ufeff\u3000")),
        (r"^[\s\d]$", set("\t\n\f\r \xa0\u2028\ufeff\u30000123456789")),
        (r"^[^\S\n]$", set("\t\f\r \xa0\u2028\ufeff\u3000")),
        (r"^\p{L}$", {text for text in WRITABLE if len(text) == 1 and text.isalpha()}),
        (r"^[\p{Nd}_]$", set("0123456789_٣")),
        (r"^[^\P{L}\x00-\xff]$", set("א")),
        ("^.$", {text for text in WRITABLE if len(text) == 1} - set("\n\r\u2028")),
        (r"^\xe9$|^\u{1F600}$|^\u05d0$", set("é😀א")),
        ("^[a&&b]$", set("ab&")),
        ("^[[a~~-]$", set("[a~-")),
        (r"^(?<name>a)$", {"a"}),
        (r"^[\x01a]$", {"a"}),
    ],
)
def test_what_javascript_reads_in_its_own_way(pattern: str, expected: set[str]) -> None:
    assert let_through(pattern) == expected


@pytest.mark.parametrize(
    "pattern",
    [
        *("[", "[a", "\\", "[]", "[^]", "[z-a]", r"[a-\d]", "[a--]"),
        *("(?=a)", "(?<!a)b", "(?i)a", "(?x) a", "(?P<n>a)", "(?#no)"),
        *("a**", "a{2}{3}", "^*a", "(*a)", "|*", "*"),
        *(r"\bfoo", r"\0", r"\1", r"\k<n>", r"\cJ", r"\A", r"\z", r"\x{41}", r"\x4", r"\Q", r"\pL", r"[\b]"),
        *(r"\ud83d", r"\u{110000}", r"a\x01", "a\x7f", r"\x00"),
    ],
)
def test_what_cannot_be_said_alike_is_refused_with_its_path_alone(pattern: str) -> None:
    with pytest.raises(UnsupportedSchema, match=r"^schema: /items/pattern has ") as told:
        served_pattern(pattern, "/items/pattern")
    assert "foo" not in str(told.value)


@settings(max_examples=200, deadline=None)
@given(st.text(st.sampled_from(r'[]()^$\.*+?{}|-&~"a1dDwWsSxu,0' + "\x00é"), max_size=12))
def test_any_text_is_a_pattern_or_a_typed_error(pattern: str) -> None:
    """And what both Python and the grammar take for a pattern of one character is the same for both."""
    try:
        served = served_pattern(f"^(?:{pattern})$", "/pattern")
    except UnsupportedSchema:
        return
    assert served.startswith("^(?:")


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(MEMBERS), min_size=1), st.booleans())
def test_a_class_of_anything_is_what_python_takes_it_for(members: list[str], negated: bool) -> None:
    pattern = f"^[{'^' if negated else ''}{''.join(members)}]$"
    read = re.compile(pattern, re.ASCII)
    expected = {text for text in WRITABLE if text != "\n" and read.search(text)}
    assume(expected)  # the library refuses what lets nothing through
    assert let_through(pattern) - {"\n"} == expected
