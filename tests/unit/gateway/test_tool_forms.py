"""OpenAI's forms of tools, calls and shapes to the contract's: held against the contract itself."""

from __future__ import annotations

import pytest
from pydantic import TypeAdapter

from sparkle.producers.gateway.chat_request import ChatRequest
from sparkle.producers.gateway.faults import ApiFault
from sparkle.producers.gateway.response_request import ResponseRequest
from sparkle.producers.gateway.tool_forms import (
    CalledFunction,
    job_call,
    job_shape,
    job_tool,
    job_tool_choice,
)
from sparkle.schemas.shape import (
    ChoiceShape,
    GrammarShape,
    JsonObjectShape,
    JsonSchemaShape,
    RegexShape,
    Shape,
)
from sparkle.schemas.tools import NamedTool, Tool, ToolCall, ToolChoice

SHAPE = TypeAdapter[object](Shape)
CHOICE = TypeAdapter[object](ToolChoice)
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


def chat(**fields: object) -> ChatRequest:
    return ChatRequest.model_validate({"messages": [{"role": "user", "content": "x"}], **fields})


def response(**fields: object) -> ResponseRequest:
    return ResponseRequest.model_validate({"input": "x", **fields})


@pytest.mark.parametrize(
    ("given", "shape"),
    [
        ({"type": "json_object"}, JsonObjectShape()),
        ({"type": "regex", "pattern": "a+"}, RegexShape(pattern="a+")),
        ({"type": "grammar", "grammar": "start: /a/"}, GrammarShape(grammar="start: /a/")),
        ({"type": "choice", "choices": ["a", "b"]}, ChoiceShape(choices=["a", "b"])),
    ],
    ids=lambda value: str(value)[:20],
)
def test_shapes_are_the_contracts(given: dict[str, object], shape: object) -> None:
    assert SHAPE.validate_python(job_shape(chat(response_format=given).response_format)) == shape
    text = response(text={"format": given}).text
    assert text is not None
    assert SHAPE.validate_python(job_shape(text.format)) == shape


@pytest.mark.parametrize(("strict", "kept"), [(True, True), (False, False), (None, False)])
def test_a_schema_is_strict_only_where_it_says_so(strict: bool | None, kept: bool) -> None:
    named = {"name": "answer", "schema": SCHEMA, "strict": strict}
    shape = JsonSchemaShape.model_validate({"schema": SCHEMA, "strict": kept})
    asked = chat(response_format={"type": "json_schema", "json_schema": named})
    assert SHAPE.validate_python(job_shape(asked.response_format)) == shape
    text = response(text={"format": {"type": "json_schema", **named}}).text
    assert text is not None
    assert SHAPE.validate_python(job_shape(text.format)) == shape


def test_any_text_is_no_shape() -> None:
    assert job_shape(chat(response_format={"type": "text"}).response_format) is None
    assert job_shape(None) is None


def test_tools_are_the_contracts() -> None:
    function = {"name": "block", "description": "Blocks.", "parameters": SCHEMA, "strict": True}
    expected = Tool.model_validate(function)
    nested = chat(tools=[{"type": "function", "function": function}]).tools
    assert nested is not None
    assert Tool.model_validate(job_tool(nested[0].function)) == expected
    flat = response(tools=[{"type": "function", **function}]).tools
    assert flat is not None
    assert Tool.model_validate(job_tool(flat[0])) == expected
    bare = chat(tools=[{"type": "function", "function": {"name": "list"}}]).tools
    assert bare is not None
    assert Tool.model_validate(job_tool(bare[0].function)) == Tool(name="list", strict=False)


def test_choices_of_tools_are_the_contracts() -> None:
    for word in ("none", "auto", "required"):
        assert CHOICE.validate_python(job_tool_choice(chat(tool_choice=word).tool_choice)) == word
    named = chat(tool_choice={"type": "function", "function": {"name": "block"}}).tool_choice
    assert CHOICE.validate_python(job_tool_choice(named)) == NamedTool(name="block")
    flat = response(tool_choice={"type": "function", "name": "block"}).tool_choice
    assert CHOICE.validate_python(job_tool_choice(flat)) == NamedTool(name="block")


def test_an_earlier_calls_arguments_are_an_object() -> None:
    called = CalledFunction(name="block", arguments='{"ip": "10.0.0.1", "n": [1]}')
    assert ToolCall.model_validate(job_call("c1", called, "x")) == ToolCall(
        id="c1", name="block", arguments={"ip": "10.0.0.1", "n": [1]}
    )
    assert job_call("c1", CalledFunction(name="list", arguments=""), "x")["arguments"] == {}


@pytest.mark.parametrize("text", ["[]", "{", "NaN", '{"a": Infinity}', "[" * 100_000, '"a"'])
def test_arguments_that_are_no_object_are_refused(text: str) -> None:
    with pytest.raises(ApiFault) as refused:
        job_call("c1", CalledFunction(name="block", arguments=text), "messages.1.tool_calls.0.function")
    assert refused.value.param == "messages.1.tool_calls.0.function.arguments"
