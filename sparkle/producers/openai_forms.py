"""Shapes, tools, calls and efforts in OpenAI's form to the contract's, and calls back. Knows no HTTP.

What is of another form than OpenAI's is left as it is: the contract says then what is wrong with it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import cast

from sparkle.errors import InvalidMessage
from sparkle.schemas.tools import ToolCall

SAMPLING_FIELDS = (
    *("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty"),
    *("frequency_penalty", "seed", "stop", "ignore_eos"),
)
"""Named in the job as in requests."""

EFFORTS: Mapping[str, str] = {
    "none": "off",
    "minimal": "low",
    "low": "low",
    "medium": "medium",
    "high": "xhigh",
    "xhigh": "xhigh",
}
"""OpenAI's words to the model's own three: its template refuses any other, and xhigh is its fullest."""


def job_shape(shape: object) -> object:
    """A `response_format`; None for any text. OpenAI's schemas are not strict unless they say so."""
    fields = _object(shape)
    if fields == {"type": "text"}:
        return None
    said = _object(fields.get("json_schema"))
    if fields.get("type") != "json_schema" or not said:
        return shape
    other = {key: value for key, value in fields.items() if key != "json_schema"}
    return {**other, "schema": said.get("schema", {}), "strict": said.get("strict") is True}


def job_tool(tool: object) -> object:
    """One of `tools`. OpenAI's functions are not strict unless they say so."""
    function = _object(_object(tool).get("function"))
    if _object(tool).get("type") != "function" or not function:
        return tool
    return {**function, "strict": function.get("strict") is True}


def job_tool_choice(choice: object) -> object:
    """The `tool_choice`."""
    function = _object(_object(choice).get("function"))
    return {"name": function.get("name")} if function else choice


def job_turn(turn: object, number: int) -> object:
    """One of `messages`, or an answer's own. Raises InvalidMessage: calls' arguments are no JSON object."""
    # an answer has null for what it has not
    fields = {name: value for name, value in _object(turn).items() if value is not None}
    if not fields:
        return turn
    if "reasoning" not in fields and "reasoning_content" in fields:
        fields["reasoning"] = fields.pop("reasoning_content")
    calls = fields.get("tool_calls")
    if not isinstance(calls, list) or fields.get("role") != "assistant":
        return fields
    place = f"body.messages.{number}.tool_calls"
    flat = [_call(call, f"{place}.{index}") for index, call in enumerate(cast("list[object]", calls))]
    # an assistant's content may be null beside calls
    return {**fields, "content": fields.get("content") or "", "tool_calls": flat or None}


def openai_calls(calls: list[ToolCall]) -> list[dict[str, object]]:
    """The calls of an answer, as chat completions have them."""
    return [
        {
            "id": call.id,
            "type": "function",
            "function": {"name": call.name, "arguments": arguments_text(call)},
        }
        for call in calls
    ]


def arguments_text(call: ToolCall) -> str:
    """The arguments as JSON, just as a stream's pieces join up to them."""
    return json.dumps(call.arguments, ensure_ascii=False)


def _call(call: object, place: str) -> object:
    fields = _object(call)
    function = _object(fields.get("function"))
    if not function:
        return call
    try:
        arguments = json.loads(str(function.get("arguments") or "{}"))
    except (ValueError, RecursionError):
        raise InvalidMessage(f"{place}.function.arguments: must be a JSON object, as text") from None
    return {"id": fields.get("id"), "name": function.get("name"), "arguments": arguments}


def _object(value: object) -> Mapping[str, object]:
    return cast("Mapping[str, object]", value) if isinstance(value, Mapping) else {}
