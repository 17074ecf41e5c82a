"""Jobs to compiled shapes, tried in another process first: kept by tenant, refused by code."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sparkle.errors import FailureCode, GrammarError, InvalidGrammar
from sparkle.schemas.job import Job, Thinking, Turn
from sparkle.schemas.shape import ChoiceShape, GrammarShape, JsonSchemaShape, RegexShape
from sparkle.schemas.tools import Tool
from sparkle.text.grammar_trial import TrialLimits
from sparkle.text.shape_compiler import ShapeCompiler
from sparkle.text.tokenizer import Tokenizer
from tests.text.matched import TINY, lets_through

DIRECTORY = Path(__file__).parents[2] / "sparkle" / "checkpoints" / "sparkle-tiny"
RUNS_AWAY: dict[str, Any] = {"allOf": [{"multipleOf": 9_973}, {"multipleOf": 9_967}]}


@pytest.fixture(scope="module")
def shapes(tiny: Tokenizer) -> Iterator[ShapeCompiler]:
    limits = TrialLimits(compile_s=2.0)
    with ShapeCompiler(
        DIRECTORY, tiny, rows=TINY.rows, end_tokens=TINY.end_tokens, trial_limits=limits
    ) as made:
        yield made


def job(tenant: str = "one", thinking: Thinking = Thinking.OFF, **asked: Any) -> Job:
    return Job(messages=[Turn(role="user", content="?")], tenant=tenant, thinking=thinking, **asked)


def test_a_job_that_asks_for_nothing_has_none(shapes: ShapeCompiler) -> None:
    assert shapes.shape_of(job()) is None


def test_the_same_wishes_of_a_tenant_are_compiled_once(shapes: ShapeCompiler) -> None:
    asked: dict[str, Any] = {"response_format": ChoiceShape(choices=["yes", "no"])}
    first, again = shapes.shape_of(job(**asked)), shapes.shape_of(job(**asked))
    other = shapes.shape_of(job("two", **asked))
    assert first is not None
    assert again is not None
    assert other is not None
    assert first.compiled is again.compiled
    assert first.compiled is not other.compiled
    assert lets_through(first.compiled, "yes")
    assert (first.exact, first.calls, first.begins_after, first.lead_in) == (True, None, None, ())


def test_a_thinking_job_begins_behind_its_thoughts(shapes: ShapeCompiler, tiny: Tokenizer) -> None:
    asked = job(thinking=Thinking.LOW, response_format=ChoiceShape(choices=["yes"], complete=True))
    shape = shapes.shape_of(asked)
    assert shape is not None
    assert shape.begins_after == tiny.added_tokens["</think>"]
    assert tiny.encode("\n\n") == [*shape.lead_in]
    assert shape.complete


def test_tools_come_with_how_their_calls_are_read(shapes: ShapeCompiler) -> None:
    tool = Tool(name="get", parameters={"properties": {"city": {"type": "string"}, "n": {"type": "integer"}}})
    shape = shapes.shape_of(job(tools=[tool]))
    assert shape is not None
    assert shape.calls is not None
    assert {name: form.raw for name, form in shape.calls["get"].items()} == {"city": True, "n": False}


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ({"response_format": RegexShape(pattern="(canary")}, FailureCode.INVALID_GRAMMAR),
        ({"response_format": RegexShape(pattern="canary(?=a)")}, FailureCode.INVALID_GRAMMAR),
        ({"response_format": RegexShape(pattern="a*")}, FailureCode.INVALID_GRAMMAR),
        ({"response_format": GrammarShape(grammar="canary")}, FailureCode.INVALID_GRAMMAR),
        ({"response_format": GrammarShape(grammar="start: canary")}, FailureCode.INVALID_GRAMMAR),
        ({"response_format": GrammarShape(grammar="start: start")}, FailureCode.INVALID_GRAMMAR),
        (
            {"response_format": JsonSchemaShape(schema={"not": {"const": "canary"}})},
            FailureCode.UNSUPPORTED_SCHEMA,
        ),
        ({"response_format": JsonSchemaShape(schema=RUNS_AWAY)}, FailureCode.GRAMMAR_TOO_COMPLEX),
        (
            {"tools": [Tool(name="canary", parameters={"properties": {"a": RUNS_AWAY}})]},
            FailureCode.GRAMMAR_TOO_COMPLEX,
        ),
        (
            {"response_format": RegexShape(pattern="(([a-z]{1,40}){1,40}){1,9}" * 2)},
            FailureCode.GRAMMAR_TOO_COMPLEX,
        ),
    ],
)
def test_what_cannot_be_compiled_ends_its_job_by_a_code(
    shapes: ShapeCompiler, asked: dict[str, Any], code: FailureCode
) -> None:
    for _ in range(2):
        with pytest.raises(GrammarError) as caught:
            shapes.shape_of(job(**asked))
        assert caught.value.code is code
        assert "canary" not in str(caught.value)


@pytest.mark.parametrize("strict", [True, False])
def test_what_is_no_schema_is_refused_as_such(shapes: ShapeCompiler, strict: bool) -> None:
    """Whether it is our guards or the compiler that see it."""
    schemas: list[dict[str, Any]] = [{"type": "odd"}, {"properties": []}, {"not": 5}]
    for schema in schemas:
        with pytest.raises(InvalidGrammar, match=r"^schema: "):
            shapes.shape_of(job(response_format=JsonSchemaShape(schema=schema, strict=strict)))
        tools = [Tool(name="do", parameters={"properties": {"a": schema}}, strict=strict)]
        with pytest.raises(InvalidGrammar, match=r"^tools\.0: schema: "):
            shapes.shape_of(job(tools=tools))


def test_without_strict_a_schema_that_runs_away_is_kept_to_its_type(shapes: ShapeCompiler) -> None:
    schema = {"type": "integer", **RUNS_AWAY}
    shape = shapes.shape_of(job(response_format=JsonSchemaShape(schema=schema, strict=False)))
    assert shape is not None
    assert not shape.exact
    assert lets_through(shape.compiled, "5")
    assert not lets_through(shape.compiled, "x")


def test_of_several_tools_those_that_are_strict_stay_so(shapes: ShapeCompiler, tiny: Tokenizer) -> None:
    strict = Tool(name="a", parameters={"properties": {"x": {"enum": ["y"]}}})
    loose = Tool(name="b", strict=False, parameters={"properties": {"x": {"type": "integer", **RUNS_AWAY}}})
    shape = shapes.shape_of(job(tools=[strict, loose]))
    assert shape is not None
    assert not shape.exact
    for name, value, through in (("a", "y", True), ("a", "z", False), ("b", "5", True), ("b", "z", False)):
        call = f"\n<function={name}>\n<parameter=x>\n{value}\n</parameter>\n</function>\n"
        tokens = [tiny.added_tokens["<tool_call>"], *tiny.encode(call)]
        assert (shape.compiled.validate_tokens(tokens) == len(tokens)) is through
