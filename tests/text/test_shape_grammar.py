"""Every shape's grammar, alone and beside tools: what it lets through, and what a job must not ask for."""

from __future__ import annotations

from typing import Any

import pytest
from llguidance import LLMatcher

from sparkle.errors import GrammarTooComplex, InvalidGrammar, UnsupportedSchema
from sparkle.schemas.job import Job, Turn
from sparkle.schemas.shape import ChoiceShape, GrammarShape, JsonObjectShape, JsonSchemaShape, RegexShape
from sparkle.schemas.tools import Tool
from sparkle.text.grammar import parser_limits
from sparkle.text.known_ways import NOTHING_KNOWN, ways_of_regex, ways_of_schema
from sparkle.text.schema_limits import SchemaLimits
from sparkle.text.shape_grammar import answer_grammar
from sparkle.text.tokenizer import Tokenizer
from tests.text.matched import TINY, lets_through

LIMITS = SchemaLimits()
STOP = Tool(name="stop")
CALL = "\n<function=stop>\n</function>\n"
INTEGER: dict[str, Any] = {"type": "integer", "minimum": 0}

SHAPES: list[tuple[Any, list[str], list[str]]] = [
    (JsonSchemaShape(schema=INTEGER), ["5", "120"], ["-1", '"5"', "5x", " 5"]),
    (JsonObjectShape(), ["{}", '{"a": [1, {"b": null}]}', '{\n  "ü": "é"\n}'], ["[]", "5", "{", '{"a"}']),
    (RegexShape(pattern="a/b|[0-9]{2}\\.x"), ["a/b", "12.x"], ["a", "12x", "a/b "]),
    (
        ChoiceShape(choices=["yes", "yes, sir", 'q"\\', "ü\n", "yes"]),
        ["yes", "yes, sir", 'q"\\', "ü\n"],
        ["no", "ye"],
    ),
    (
        GrammarShape(grammar='start: sum\nsum: NUM ("+" sum)?\nNUM: /[0-9]+/'),
        ["1", "1+22+3"],
        ["", "1+", "+1", "1 + 2"],
    ),
    (GrammarShape(grammar='start: "v=" %json {"type": "boolean"}'), ["v=true"], ["v=1", "true"]),
]
IDS = [f"{place}-{shape.type}" for place, (shape, _, _) in enumerate(SHAPES)]


def compiled(**asked: Any) -> LLMatcher:
    grammar = answer_grammar(Job(messages=[Turn(role="user", content="?")], **asked), LIMITS)
    assert grammar is not None
    assert grammar.exact
    made = LLMatcher(TINY.tokens, grammar.text, log_level=0, limits=parser_limits())
    assert not made.is_error(), made.get_error()
    return made


@pytest.mark.parametrize(("shape", "right", "wrong"), SHAPES, ids=IDS)
@pytest.mark.parametrize(
    "beside", [{}, {"tools": [STOP]}, {"tools": [STOP], "tool_choice": "none"}], ids=repr
)
def test_a_shape_lets_through_what_has_it_and_nothing_else(
    shape: Any, right: list[str], wrong: list[str], beside: dict[str, Any]
) -> None:
    grammar = compiled(response_format=shape, **beside)
    assert [text for text in right if not lets_through(grammar, text)] == []
    assert [text for text in wrong if lets_through(grammar, text)] == []


@pytest.mark.parametrize(("shape", "right", "wrong"), SHAPES, ids=IDS)
def test_beside_tools_a_call_may_stand_in_its_place(
    shape: Any, right: list[str], wrong: list[str], tiny: Tokenizer
) -> None:
    added = tiny.added_tokens
    call = [added["<tool_call>"], *tiny.encode(CALL), added["</tool_call>"]]
    for choice, may_call in (("auto", True), ("none", False), ("required", True)):
        state = compiled(response_format=shape, tools=[STOP], tool_choice=choice)
        assert (state.validate_tokens(call) == len(call)) is may_call
        text = tiny.encode(right[0])
        assert (state.validate_tokens(text) == len(text)) is (choice != "required")
        # not one after the other
        both = [*text, *call]
        assert state.validate_tokens(both) < len(both)


def test_a_job_that_asks_for_nothing_has_none() -> None:
    assert answer_grammar(Job(prompt="x"), LIMITS) is None


def test_without_strict_a_schema_is_kept_to_its_type() -> None:
    schema: dict[str, Any] = {"type": "integer", "not": {"const": 5}}
    job = Job(prompt="x", response_format=JsonSchemaShape(schema=schema, strict=False))
    grammar = answer_grammar(job, LIMITS)
    assert grammar is not None
    assert not grammar.exact
    made = LLMatcher(TINY.tokens, grammar.text, log_level=0, limits=parser_limits())
    assert lets_through(made, "5")
    assert not lets_through(made, '"5"')


def test_without_strict_and_without_a_type_it_is_json() -> None:
    job = Job(
        prompt="x",
        response_format=JsonSchemaShape(schema={"type": ["object", "null"], "not": {}}, strict=False),
    )
    grammar = answer_grammar(job, LIMITS)
    assert grammar is not None
    made = LLMatcher(TINY.tokens, grammar.text, log_level=0, limits=parser_limits())
    assert lets_through(made, '{"a": [1]}')
    assert not lets_through(made, "text")


@pytest.mark.parametrize(
    "schema",
    [{"type": ["odd"], "not": {}}, {"not": 5}, {"required": 1, "if": {}}, {"minLength": "x", "not": {}}],
)
def test_what_is_no_schema_is_refused_also_without_strict(schema: dict[str, Any]) -> None:
    shape = JsonSchemaShape(schema=schema, strict=False)
    with pytest.raises(InvalidGrammar):
        answer_grammar(Job(prompt="x", response_format=shape), LIMITS)
    tools = [Tool(name="do", parameters={"properties": {"a": schema}}, strict=False)]
    turns = [Turn(role="user", content="x")]
    with pytest.raises(InvalidGrammar, match=r"^tools\.0: "):
        answer_grammar(Job(messages=turns, tools=tools), LIMITS)


def test_without_strict_what_can_be_enforced_is() -> None:
    shape = JsonSchemaShape(schema=INTEGER, strict=False)
    assert not lets_through(compiled(response_format=shape), "-1")


def test_what_cannot_be_enforced_is_refused() -> None:
    with pytest.raises(UnsupportedSchema, match=r"^schema: /not "):
        answer_grammar(Job(prompt="x", response_format=JsonSchemaShape(schema={"not": {}})), LIMITS)
    with pytest.raises(GrammarTooComplex, match="pattern"):
        answer_grammar(Job(prompt="x", response_format=RegexShape(pattern="(a{1,900}){1,900}")), LIMITS)


@pytest.mark.parametrize("beside", [{}, {"tools": [STOP]}], ids=repr)
def test_what_helps_to_end_an_answer_comes_from_its_own_shape(beside: dict[str, Any]) -> None:
    def known(shape: Any, *, loosest: bool = False) -> object:
        job = Job(messages=[Turn(role="user", content="?")], response_format=shape, **beside)
        grammar = answer_grammar(job, LIMITS, loosest=loosest)
        assert grammar is not None
        return grammar.known

    schema: dict[str, Any] = {"type": "string", "pattern": "ab$"}
    assert known(JsonSchemaShape(schema=schema)) == ways_of_schema(schema) != NOTHING_KNOWN
    assert known(RegexShape(pattern="x+ab")) == ways_of_regex("x+ab") != NOTHING_KNOWN
    assert known(JsonObjectShape()) == NOTHING_KNOWN
    # of a schema that is not kept to nothing is known
    unkept: dict[str, Any] = {**schema, "not": {"maxLength": 3}}
    assert known(JsonSchemaShape(schema=unkept, strict=False), loosest=True) == NOTHING_KNOWN
