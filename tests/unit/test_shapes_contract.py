"""Shapes, tools and calls in the contract: what goes over the queue comes back, what cannot is refused."""

from __future__ import annotations

import json
import traceback
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from sparkle.schemas.answer import Channel, Chunk, FinishReason, Result, Usage
from sparkle.schemas.codec import decode, encode
from sparkle.schemas.ids import new_job_id
from sparkle.schemas.json_object import LARGEST_WHOLE, SMALLEST_WHOLE
from sparkle.schemas.packing import pack, unpack
from sparkle.schemas.shape import JsonSchemaShape, RegexShape, Shape
from sparkle.schemas.tools import Tool, ToolCall, ToolCallDelta

SHAPE = TypeAdapter[Any](Shape)
CANARY = "canary-7f3a"
USAGE = Usage(prompt_tokens=1, completion_tokens=2, queue_s=0.5, first_token_s=0.25, total_s=1.0)

WRITTEN: list[dict[str, Any]] = [
    {"type": "json_schema", "schema": {"const": None, "b": [1, {"x": None}], "a": {}}, "strict": False},
    {"type": "json_object", "complete": True},
    {"type": "regex", "pattern": "[a-z]+"},
    {"type": "grammar", "grammar": 'start: "a"'},
    {"type": "choice", "choices": ["yes", "no"]},
]


@pytest.mark.parametrize("written", WRITTEN, ids=lambda written: written["type"])
def test_a_shape_comes_back_as_it_went(written: dict[str, Any]) -> None:
    shape = SHAPE.validate_python(written)
    fields = unpack(pack({"shape": SHAPE.dump_python(shape, exclude_none=True)}))
    assert SHAPE.validate_python(fields["shape"]) == shape
    # what is not given takes its default, what is given stays, nulls and the order of keys too
    assert {**SHAPE.dump_python(shape), **written} == SHAPE.dump_python(shape)
    assert json.dumps(SHAPE.dump_python(shape).get("schema")) == json.dumps(written.get("schema"))


def test_a_schema_is_strict_and_breaks_off_unless_it_says_otherwise() -> None:
    shape = JsonSchemaShape(schema={})
    assert (shape.strict, shape.complete) == (True, False)
    assert RegexShape(pattern="a").complete is False


def test_an_answer_with_calls_comes_back_as_it_went() -> None:
    arguments: dict[str, Any] = {"z": 1, "a": [None, "é", 2**64 - 1], "n": None}
    result = Result(
        job=new_job_id(),
        attempt=1,
        worker="w-1",
        text="",
        tokens=[1],
        tool_calls=[ToolCall(id="c", name="größe", arguments=arguments)],
        valid=False,
        finish_reason=FinishReason.TOOL_CALLS,
        usage=USAGE,
    )
    read = decode(encode(result), Result)
    assert read == result
    assert list(read.tool_calls[0].arguments) == ["z", "a", "n"]


def test_a_piece_of_a_call_comes_back_as_it_went() -> None:
    chunk = Chunk(
        job=new_job_id(),
        attempt=1,
        seq=0,
        first_index=0,
        tokens=[1, 2],
        text="",
        text_start=0,
        channel=Channel.ANSWER,
        worker="w-1",
        tool_calls=[
            ToolCallDelta(index=0, id="c", name="f"),
            ToolCallDelta(index=0, arguments='{"a": ', arguments_start=0),
        ],
    )
    assert decode(encode(chunk), Chunk) == chunk


@pytest.mark.parametrize("whole", [SMALLEST_WHOLE, LARGEST_WHOLE])
def test_whole_numbers_of_64_bits_go(whole: int) -> None:
    shape = JsonSchemaShape(schema={"const": whole})
    assert unpack(pack(shape.model_dump()))["schema"] == {"const": whole}


@pytest.mark.parametrize(
    "value", [SMALLEST_WHOLE - 1, LARGEST_WHOLE + 1, f"{CANARY}\ud800", float("inf"), {f"{CANARY}\udfff": 1}]
)
def test_what_the_queue_cannot_carry_is_refused_without_it(value: object) -> None:
    with pytest.raises(ValidationError) as caught:
        JsonSchemaShape.model_validate({"schema": {"a": [{"b": value}]}})
    assert CANARY not in "".join(traceback.format_exception(caught.value))


def test_a_schema_too_deep_for_the_contract_is_refused() -> None:
    schema: dict[str, Any] = {}
    for _ in range(600):
        schema = {"not": schema}
    with pytest.raises(ValidationError):
        JsonSchemaShape.model_validate({"schema": schema})


@pytest.mark.parametrize("name", ["get_weather", "größe", "天気", "server/tool.v2", "a" * 128])
def test_names_that_a_tag_can_hold(name: str) -> None:
    assert Tool(name=name).name == name


@pytest.mark.parametrize(
    "name", ["", "a b", "a\n", "a>", "<tool_call>", "a\x00", "a\u2028b", "\u3000", "a" * 129]
)
def test_names_that_a_tag_cannot_hold(name: str) -> None:
    with pytest.raises(ValidationError):
        Tool(name=name)
