"""A request to /v1/responses, and the order it comes to. Knows no answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, cast

from pydantic import BeforeValidator, Discriminator, Field, JsonValue, Tag

from sparkle.producers.gateway.asked import Asked, Defaults, Effort, Order, order, sampling, thinking
from sparkle.producers.gateway.chat_request import with_one_system
from sparkle.producers.gateway.tool_forms import (
    AnyFlatShape,
    CalledFunction,
    Choice,
    FlatNamedTool,
    FlatToolForm,
    job_call,
    job_shape,
    tool_fields,
)
from sparkle.schemas.message import Part

Status = Literal["in_progress", "completed", "incomplete"]


class TextItemPart(Part):
    """A piece of text of an item."""

    type: Literal["input_text", "output_text", "text", "reasoning_text"]
    text: str
    annotations: list[JsonValue] | None = None
    """Not read."""

    logprobs: list[JsonValue] | None = None
    """Not read."""


def _as_parts(value: object) -> object:
    return [{"type": "input_text", "text": value}] if isinstance(value, str) else value


ItemTexts = Annotated[
    list[TextItemPart],
    BeforeValidator(_as_parts, json_schema_input_type=str | list[TextItemPart]),
    Field(max_length=1024),
]


class MessageItem(Part):
    """A turn of the chat."""

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: ItemTexts
    id: str | None = None
    status: Status | None = None


class CallItem(Part):
    """A function as it was called before."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str
    """A JSON object, as text."""

    id: str | None = None
    status: Status | None = None


class OutcomeItem(Part):
    """What came of a call."""

    type: Literal["function_call_output"]
    call_id: str
    output: ItemTexts
    id: str | None = None
    status: Status | None = None


class ReasoningItem(Part):
    """What was thought before the answer that follows."""

    type: Literal["reasoning"]
    id: str | None = None
    summary: list[JsonValue] | None = None
    """Not read."""

    content: ItemTexts | None = None
    encrypted_content: None = None
    status: Status | None = None


def _type_of(value: object) -> str:
    if isinstance(value, MessageItem | CallItem | OutcomeItem | ReasoningItem):
        return value.type
    given = cast("dict[str, object]", value).get("type", "message") if isinstance(value, dict) else ""
    return given if isinstance(given, str) else ""


Item = Annotated[
    Annotated[MessageItem, Tag("message")]
    | Annotated[CallItem, Tag("function_call")]
    | Annotated[OutcomeItem, Tag("function_call_output")]
    | Annotated[ReasoningItem, Tag("reasoning")],
    # a message need not say that it is one
    Discriminator(
        _type_of,
        custom_error_type="unknown_item",
        custom_error_message="type must be one of message, function_call, function_call_output, reasoning",
    ),
]


def _as_items(value: object) -> object:
    return [{"role": "user", "content": value}] if isinstance(value, str) else value


class TextConfig(Part):
    """The answer's shape."""

    format: AnyFlatShape | None = None
    verbosity: Literal["medium"] | None = None


class ReasoningConfig(Part):
    """How long to think."""

    effort: Effort | None = None
    summary: None = None


class ResponseStreamOptions(Part):
    """Beside the answer."""

    include_obfuscation: bool | None = None
    """OpenAI's padding against who counts encrypted bytes. Taken and not done: a proxy's matter."""


class ResponseRequest(Asked):
    """A chat to answer, as items."""

    input: Annotated[
        list[Item],
        BeforeValidator(_as_items, json_schema_input_type=str | list[Item]),
        Field(min_length=1, max_length=4096),
    ]
    instructions: str | None = None
    max_output_tokens: int | None = None
    text: TextConfig | None = None
    reasoning: ReasoningConfig | None = None
    tools: Annotated[list[FlatToolForm], Field(max_length=128)] | None = None
    tool_choice: Choice | FlatNamedTool | None = None
    parallel_tool_calls: bool | None = None
    stream_options: ResponseStreamOptions | None = None
    truncation: Literal["disabled"] | None = None
    background: Literal[False] | None = None
    include: list[Literal["message.output_text.logprobs", "reasoning.encrypted_content"]] | None = None
    """Of these, encrypted reasoning is taken and left out: it stands in the open, and nothing is kept."""

    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    previous_response_id: None = None
    """Nothing is kept: send all items, with `conversation` for speed."""


def response_order(asked: ResponseRequest, defaults: Defaults) -> Order:
    """Its order. Raises ApiFault."""
    effort = asked.reasoning.effort if asked.reasoning is not None else None
    logprobs = asked.top_logprobs
    if logprobs is None and "message.output_text.logprobs" in (asked.include or ()):
        logprobs = 0
    fields: dict[str, object] = {
        "messages": _turns(asked),
        "max_tokens": asked.max_output_tokens,
        "sampling": sampling(asked, ("logprobs", logprobs)),
        "thinking": thinking(effort),
        "response_format": job_shape(asked.text.format if asked.text is not None else None),
        **tool_fields(asked.tools or (), asked.tool_choice, parallel=asked.parallel_tool_calls),
    }
    return order(asked, fields, defaults)


def _turns(asked: ResponseRequest) -> list[dict[str, object]]:
    turns: list[dict[str, object]] = []
    if asked.instructions is not None:
        turns.append({"role": "system", "content": asked.instructions})
    thought: str | None = None
    for number, item in enumerate(asked.input):
        match item:
            case ReasoningItem():
                thought = _text(item.content or ())
            case MessageItem():
                role = "system" if item.role == "developer" else item.role
                turns.append({"role": role, "content": _text(item.content)})
                if thought and role == "assistant":
                    turns[-1]["reasoning"] = thought
                thought = None
            case CallItem():
                called = CalledFunction(name=item.name, arguments=item.arguments)
                _add_call(turns, job_call(item.call_id, called, f"input.{number}"), thought)
                thought = None
            case OutcomeItem():
                outcome = _text(item.output)
                turns.append({"role": "tool", "content": outcome, "tool_call_id": item.call_id})
    return with_one_system(turns)


def _add_call(turns: list[dict[str, object]], call: dict[str, object], thought: str | None) -> None:
    """Calls belong to the assistant's turn in front of them; without one, to a turn of their own."""
    if thought or not turns or turns[-1]["role"] != "assistant":
        turns.append({"role": "assistant", "content": ""})
    if thought:
        turns[-1]["reasoning"] = thought
    calls = cast("list[dict[str, object]]", turns[-1].setdefault("tool_calls", []))
    calls.append(call)


def _text(parts: Sequence[TextItemPart]) -> str:
    return "".join(part.text for part in parts)
