"""What a schema's grammar may write: no second spelling of a name, no control characters, bounded space."""

from __future__ import annotations

import json

import pytest

from sparkle.text.grammar import checked_schema
from sparkle.text.schema_limits import SchemaLimits
from tests.text.matched import compiled, lets_through

OPEN = {"type": "object", "properties": {"a": {"type": "integer"}, "b/c": {"type": "integer"}}}


@pytest.mark.parametrize("again", ["a", r"\u0061", "b/c", r"b\/c", r"b\u002fc", r"\ud83d", r"\u0001"])
def test_a_name_does_not_come_again_unchecked_in_another_spelling(again: str) -> None:
    grammar = compiled(OPEN)
    assert lets_through(grammar, '{"a": 1, "b/c": 2, "other": "x"}')
    assert not lets_through(grammar, f'{{"a": 1, "b/c": 2, "{again}": "x"}}')
    assert not lets_through(grammar, f'{{"{again}": "x"}}')


def test_nor_by_a_pattern_or_a_requirement() -> None:
    patterned = compiled({"patternProperties": {"^x": {"type": "integer"}}})
    assert lets_through(patterned, '{"x": 1, "y": "a", "xx": 2}')
    assert not lets_through(patterned, r'{"\u0078": "a"}')
    required = compiled({"type": "object", "required": ["a"], "additionalProperties": {"type": "integer"}})
    assert lets_through(required, '{"a": 1, "b": 1}')
    assert not lets_through(required, r'{"a": 1, "\u0061": 1}')


def test_texts_have_the_short_escapes_alone() -> None:
    text = compiled({"type": "string"})
    written = 'é😀\u2028/\\" \b\t\n\f\r'
    assert lets_through(text, json.dumps(written, ensure_ascii=False))
    for other in (r'"\u00e9"', r'"\u0001"', r'"\/"', r'"\ud83d\ude00"', r'"\ud83d"', '"\x01"', '"\x7f"'):
        assert not lets_through(text, other)


def test_space_between_values_is_bounded_and_none_stands_around_them() -> None:
    grammar = compiled({"type": "object"})
    assert lets_through(grammar, '{"a":' + " " * 24 + "1\n}")
    assert not lets_through(grammar, '{"a":' + " " * 25 + "1}")
    assert not lets_through(grammar, '{"a":\t1}')
    assert not lets_through(grammar, " {}")


def test_any_value_fulfils_true_and_its_options_are_in_the_schema_itself() -> None:
    anything = compiled(True)
    for text in ("null", "1.5", '"x"', '[1, {"a": []}]', "false"):
        assert lets_through(anything, text)
    options = json.loads(checked_schema({"title": "t"}, SchemaLimits()))["x-guidance"]
    assert (options["lenient"], options["coerce_one_of"]) == (False, False)
