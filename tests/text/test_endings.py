"""Short endings: from wherever an answer stands one is found, it is valid, and it has room."""

from __future__ import annotations

import json
from random import Random

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sparkle.engine.settings import default_model
from sparkle.text.answer_check import AnswerCheck
from sparkle.text.endings import Endings
from sparkle.text.known_ways import ways_of_schema
from sparkle.text.matcher import Matcher
from sparkle.text.shape import Shape
from sparkle.text.tokenizer import Tokenizer
from sparkle.text.way import Budget, Way
from tests.shapes import PERSON, of_lark, of_schema, vocabulary
from tests.text.matched import TINY
from tests.text.schema_examples import examples

TOKENIZER = Tokenizer.load(default_model())
ROWS = TOKENIZER.vocab_size + 40
ENDS = (TOKENIZER.added_tokens["<|im_end|>"], TOKENIZER.added_tokens["<|endoftext|>"])
VOCABULARY = vocabulary(ROWS, ENDS)
ENDINGS = Endings(TOKENIZER, rows=ROWS)
STRICT: dict[str, object] = {"type": "object", "additionalProperties": False}
REPORT: dict[str, object] = {
    **STRICT,
    "properties": {
        "title": {"type": "string", "minLength": 3, "maxLength": 80},
        "severity": {"enum": ["low", "medium", "high"]},
        "score": {"type": "number", "minimum": 0, "maximum": 10},
        "id": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{4}$"},
        "steps": {
            "type": "array",
            "minItems": 1,
            "items": {**STRICT, "properties": {"do": {"type": "string"}}, "required": ["do"]},
        },
        "more": {"type": "object"},
    },
    "required": ["title", "severity", "score", "id", "steps"],
}
CALL = """start: <tool_call> "\\n<function=look>\\n" args "</function>\\n" <tool_call_end>
args: "<parameter=where>\\n" value
value[suffix="\\n</parameter>\\n"]: /(?s:.*)/
"""


def state_behind(shape: Shape, text: str) -> Matcher:
    state = Matcher(shape.compiled, rows=ROWS, end_tokens=ENDS)
    state.accept(TOKENIZER.encode(text))
    return state


def written(tokens: list[int]) -> str:
    return b"".join(map(TOKENIZER.token_bytes, tokens)).decode()


@pytest.mark.parametrize(
    ("schema", "begun", "most"),
    [
        (PERSON, "", 20),
        (PERSON, '{"name": "hello', 15),
        (PERSON, '{"name": "hello world", "age": 1', 2),
        (PERSON, '{"name": "hello world", "age": 12, "tags": ["b', 3),
        (REPORT, "", 70),
        (REPORT, '{"title": "A', 70),
        (REPORT, '{"title": "Abc", "severity": "l', 60),
        (REPORT, '{"title": "Abc", "severity": "low", "score": 1.', 50),
        (REPORT, '{"title": "Abc", "severity": "low", "score": 1, "id": "A', 45),
        ({"type": "string", "minLength": 200}, '"', 120),
        ({"type": "string", "pattern": "^[ab]*c$"}, '"abab', 3),
        ({"type": "string", "format": "date"}, '"20', 14),
        ({"type": "array", "items": {"type": "integer"}, "minItems": 3}, "[-", 8),
        ({"type": "string", "format": "email"}, "", 12),
        ({"type": "string", "format": "duration"}, '"P', 6),
        ({"type": "string", "pattern": "^<[^<>]*>$"}, '"<html', 3),
        ({"type": "string", "pattern": "z$"}, '"hello', 3),
        ({"type": "string", "pattern": "ab$"}, '"hello a', 4),
        ({"type": "string", "pattern": 'a"$', "minLength": 12}, '"', 12),
        ({"type": "integer", "multipleOf": 9973}, "-1", 6),
        ({"type": "array", "items": {"multipleOf": 9973}, "minItems": 2}, "[2", 12),
        ({"type": "integer", "multipleOf": 9973, "minimum": 20_000}, "", 7),
        ({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}, "", 5),
        ({"type": "integer", "multipleOf": 7}, "29", 3),
        ({"type": "integer", "multipleOf": 60}, "71", 4),
        (True, '{"a": [[[{"b": "', 8),
    ],
)
def test_json_is_closed(schema: dict[str, object] | bool, begun: str, most: int) -> None:
    shape = of_schema(schema, VOCABULARY)
    state = state_behind(shape, begun)
    ending = ENDINGS.find(state, most, shape.known)
    assert ending is not None
    assert len(ending) <= most
    jsonschema.validate(json.loads(begun + written([*ending])), schema)
    # the search has left the answer where it stood
    state.accept([*ending, ENDS[0]])
    assert state.ended


def test_half_a_character_is_made_whole_first() -> None:
    state = state_behind(of_schema(REPORT, VOCABULARY), '{"title":"')
    half = next(token for token in range(TOKENIZER.vocab_size) if TOKENIZER.token_bytes(token) == b"\xc2")
    state.accept([half])
    ending = ENDINGS.find(state, 60)
    assert ending is not None
    text = b"".join(map(TOKENIZER.token_bytes, [half, *ending])).decode()
    jsonschema.validate(json.loads('{"title":"' + text), REPORT)


def test_no_ending_where_there_is_no_room() -> None:
    begun = state_behind(of_schema(PERSON, VOCABULARY), '{"name": "hello')
    assert ENDINGS.find(begun, 2) is None
    complete = state_behind(of_schema(PERSON, VOCABULARY), '{"name": "hello world", "age": 12}')
    assert ENDINGS.find(complete, 0) == ()
    assert ENDINGS.find(complete, -1) is None


def test_an_endless_search_gives_up() -> None:
    begun = state_behind(of_lark('start: /[a-z]{9000}/ "!"', VOCABULARY), "a")
    assert ENDINGS.find(begun, 10_000) is None


def test_a_tool_call_is_closed_out_of_a_raw_value() -> None:
    text = CALL.replace("<tool_call_end>", "</tool_call>")
    state = Matcher(of_lark(text, VOCABULARY).compiled, rows=ROWS, end_tokens=ENDS)
    begun = "\n<function=look>\n<parameter=where>\nin {the"
    state.accept([TOKENIZER.added_tokens["<tool_call>"], *TOKENIZER.encode(begun)])
    ending = ENDINGS.find(state, 20)
    assert ending is not None
    assert written([*ending]).endswith("\n</parameter>\n</function>\n</tool_call>")
    assert ending[-1] == TOKENIZER.added_tokens["</tool_call>"]
    state.accept([*ending, ENDS[0]])


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_an_ending_is_found_from_anywhere(data: st.DataObject) -> None:
    schema = data.draw(st.sampled_from([PERSON, REPORT]))
    state = Matcher(of_schema(schema, VOCABULARY).compiled, rows=ROWS, end_tokens=ENDS)
    tokens = list[int]()
    for _ in range(data.draw(st.integers(0, 25))):
        if state.must_end():
            break
        mask = state.allowed()
        choice = [
            token
            for token in range(TOKENIZER.vocab_size)
            if mask[token // 8] >> token % 8 & 1 and token not in ENDS
        ]
        tokens.append(data.draw(st.sampled_from(choice)))
        state.accept(tokens[-1:])
    ending = ENDINGS.find(state, 100)
    assert ending is not None
    jsonschema.validate(json.loads(written([*tokens, *ending])), schema)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_an_ending_is_valid_under_whatever_schema(data: st.DataObject) -> None:
    example = data.draw(st.sampled_from(examples()))
    state = TINY.matcher(TINY.compile(example.schema))
    draw = Random(data.draw(st.integers(0, 1_000)))
    tokens: list[int] = []
    for _ in range(draw.randrange(12)):
        choice = [token for (token,) in Way.from_here(state, Budget(0)).every_token() if token not in ENDS]
        if not choice:
            break
        tokens.append(draw.choice(choice))
        state.accept(tokens[-1:])
    ending = ENDINGS.find(state, 120, ways_of_schema(example.schema))
    assert ending is not None, example.name
    assert AnswerCheck(example.schema).holds(written([*tokens, *ending])) is True
