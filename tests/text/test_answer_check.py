"""A finished answer is valid or not by the numbers and texts that are written in it."""

from __future__ import annotations

import json
import urllib.request
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkle.errors import InvalidGrammar
from sparkle.text.answer_check import AnswerCheck
from sparkle.text.exact_numbers import exact, is_multiple, is_whole, whole

DEEP = 100_000
DRAFT_7 = "http://json-schema.org/draft-07/schema#"
NULL = {"type": "null"}


@pytest.mark.parametrize(
    ("schema", "valid", "invalid"),
    [
        ({"multipleOf": 0.01}, ["0.07", "-1.10", "1e30", "0", "true", '"x"'], ["0.071", "1e-3"]),
        ({"multipleOf": 3}, ["9" * 5_000, "0.0", "3e400"], ["1" + "0" * 4_999, "1.5", "1e999999999"]),
        ({"type": "integer"}, ["9" * 5_000, "2.0", "1e999999"], ["2.5", "1e-999999999", "true"]),
        ({"type": "number", "exclusiveMaximum": 10}, ["9." + "9" * 40], ["10.0", "1e400", "1e" + "9" * 30]),
        ({"multipleOf": 3}, ["0E" + "9" * 30, "3e" + "9" * 30], ["1E+" + "9" * 30, "3e-" + "9" * 30]),
        ({"minimum": 0.1}, ["0.1", "0.10"], ["0.09999999999999999999999"]),
        ({"const": 0.1}, ["0.1", "0.10", "1e-1"], ["0.10000000000000000001"]),
        ({"const": 1}, ["1", "1.0"], ["true", "2"]),
        ({"enum": [9007199254740993, "a"]}, ["9007199254740993"], ["9007199254740992"]),
        ({"pattern": r"^\S$"}, ['"a"', '"\\u0001"', "1"], ['"\u00a0"', '"\ufeff"']),
        ({"pattern": r"^\p{L}+$"}, ['"é"'], ['"1"']),
        ({"pattern": "^(a+)+$"}, [json.dumps("a" * DEEP)], [json.dumps("a" * DEEP + "b")]),
        ({"pattern": "(?=ab)"}, ['"xab"'], ['"xa"']),
        ({"pattern": "^a$"}, ['"a"'], ['"a\\n"']),
        ({"format": "date"}, ['"2024-02-29"', "3"], ['"2023-02-29"', '"\\u0001"']),
        ({"format": "idn-email"}, ['"anything"'], []),
        ({"patternProperties": {r"^\p{Lu}": {"type": "integer"}}, "additionalProperties": False},
         ['{"É": 1}'], ['{"É": "x"}', '{"e": 1}']),
        ({"properties": {"a": True}, "patternProperties": {"^b": True}, "additionalProperties": NULL},
         ['{"a": 1, "b": 1, "c": null}', "[]"], ['{"c": 1}']),
        ({"not": {"type": "object", "required": ["a"]}, "uniqueItems": True},
         ["{}", "[1, 2]"], ['{"a": 1}', "[1, 1.0]"]),
        ({"$schema": DRAFT_7, "items": [NULL]}, ["[null]"], ["[1]"]),
        (True, ["1"], ["", "{", "NaN", "1 1", "Infinity"]),
        (False, [], ["1"]),
    ],
)  # fmt: skip
def test_answers(schema: bool | dict[str, object], valid: list[str], invalid: list[str]) -> None:
    check = AnswerCheck(schema)
    assert [text[:50] for text in valid if check.holds(text) is not True] == []
    assert [text[:50] for text in invalid if check.holds(text) is not False] == []


def test_a_value_is_checked_as_its_text_is() -> None:
    check = AnswerCheck({"properties": {"a": {"items": {"multipleOf": 0.01}}}})
    assert check.holds_value({"a": [0.07, 3]}) is True
    assert check.holds_value({"a": [0.071]}) is False


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"$ref": "#"}, "1"),
        ({"$ref": "#/$defs/none"}, "1"),
        ({"items": {"$ref": "#"}}, "[" * DEEP + "]" * DEEP),
        ({"pattern": "(?=ab"}, '"a"'),
    ],
)
def test_what_cannot_be_said(schema: dict[str, object], text: str) -> None:
    assert AnswerCheck(schema).holds(text) is None


def test_nothing_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr(urllib.request, "urlopen", asked.append)
    assert AnswerCheck({"$ref": "http://127.0.0.1:1/schema"}).holds("1") is None
    assert asked == []


@pytest.mark.parametrize("schema", [{"type": "kanarienvogel"}, {"items": 3}, {"multipleOf": 0}])
def test_what_is_no_schema_is_told_without_it(schema: dict[str, object]) -> None:
    with pytest.raises(InvalidGrammar, match=r"^schema: is not valid under its own draft; correct it$"):
        AnswerCheck(schema)


decimals = st.decimals(allow_nan=False, allow_infinity=False, places=6).filter(lambda d: abs(d) < 10**12)
numbers = st.integers() | decimals


@given(numbers, numbers.map(abs).filter(bool))
def test_multiples_are_those_of_fractions(value: int | Decimal, of: int | Decimal) -> None:
    assert is_multiple(value, of) == ((Fraction(value) / Fraction(of)).denominator == 1)
    assert is_whole(value) == (Fraction(value).denominator == 1)


@given(st.integers(-(10**6), 10**6), numbers.map(abs).filter(bool))
def test_a_whole_number_of_times_is_a_multiple(times: int, of: int | Decimal) -> None:
    assert is_multiple(times * of, of)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_float_is_the_number_that_was_written(value: float) -> None:
    assert exact([{"a": value}]) == [{"a": Decimal(json.dumps(value))}]


@pytest.mark.parametrize("digits", ["0", "-12", "7" * 4_299, "-" + "7" * 4_300, "7" * 9_000])
def test_whole_numbers_of_any_length(digits: str) -> None:
    assert whole(digits) == (-1 if digits[0] == "-" else 1) * sum(
        int(digit) * 10**place for place, digit in enumerate(reversed(digits.lstrip("-")))
    )
