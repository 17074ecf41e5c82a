"""A request to /v1/chat/completions, and the orders it comes to. Knows no answer."""

from __future__ import annotations

from itertools import takewhile
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, JsonValue

from sparkle.producers.gateway.asked import (
    Asked,
    Defaults,
    Effort,
    Order,
    Penalties,
    StreamOptions,
    orders,
    sampling,
    thinking,
)
from sparkle.producers.gateway.faults import invalid
from sparkle.producers.gateway.tool_forms import (
    AnyShape,
    Choice,
    NamedTool,
    ToolCallForm,
    ToolForm,
    job_call,
    job_shape,
    tool_fields,
)
from sparkle.schemas.message import Part


class TextForm(Part):
    """A piece of text."""

    type: Literal["text"]
    text: str


def _as_parts(value: object) -> object:
    return [{"type": "text", "text": value}] if isinstance(value, str) else value


Texts = Annotated[
    list[TextForm],
    BeforeValidator(_as_parts, json_schema_input_type=str | list[TextForm]),
    Field(max_length=1024),
]


class ChatTurn(Part):
    """One message of a chat."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Texts | None = None
    reasoning_content: str | None = None
    """What an assistant turn thought before it answered."""

    tool_calls: list[ToolCallForm] | None = None
    tool_call_id: str | None = None
    refusal: None = None
    audio: None = None
    function_call: None = None
    annotations: list[JsonValue] | None = None
    """Not read."""


class ChatRequest(Asked, Penalties):
    """A chat to answer."""

    messages: Annotated[list[ChatTurn], Field(min_length=1, max_length=4096)]
    max_completion_tokens: int | None = None
    max_tokens: int | None = None
    n: int | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    response_format: AnyShape | None = None
    tools: Annotated[list[ToolForm], Field(max_length=128)] | None = None
    tool_choice: Choice | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Effort | None = None
    stream_options: StreamOptions | None = None
    modalities: list[Literal["text"]] | None = None
    verbosity: Literal["medium"] | None = None

    @property
    def wants_usage(self) -> bool:
        """Whether a stream ends with what the answer used."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)


def chat_orders(asked: ChatRequest, defaults: Defaults) -> tuple[Order, ...]:
    """One order a choice. Raises ApiFault."""
    if asked.top_logprobs is not None and not asked.logprobs:
        raise invalid("top_logprobs: needs logprobs to be true", "top_logprobs")
    if asked.stream_options is not None and not asked.stream:
        raise invalid("stream_options: needs stream to be true", "stream_options")
    logprobs = (asked.top_logprobs or 0) if asked.logprobs else None
    fields: dict[str, object] = {
        "messages": with_one_system(
            [_turn(turn, f"messages.{number}") for number, turn in enumerate(asked.messages)]
        ),
        "max_tokens": _max_tokens(asked),
        "sampling": sampling(asked, ("logprobs", logprobs)),
        "thinking": thinking(asked.reasoning_effort),
        "response_format": job_shape(asked.response_format),
        **tool_fields(
            [tool.function for tool in asked.tools or ()],
            asked.tool_choice,
            parallel=asked.parallel_tool_calls,
        ),
    }
    return orders(asked, fields, 1 if asked.n is None else asked.n, defaults)


def with_one_system(turns: list[dict[str, object]]) -> list[dict[str, object]]:
    """Turns of system and developer in front as one: the model's chat form has one place for them."""
    heads = list(takewhile(lambda turn: turn["role"] == "system", turns))
    if len(heads) < 2:
        return turns
    return [
        {"role": "system", "content": "\n\n".join(str(turn["content"]) for turn in heads)},
        *turns[len(heads) :],
    ]


def _max_tokens(asked: ChatRequest) -> int | None:
    given = {value for value in (asked.max_completion_tokens, asked.max_tokens) if value is not None}
    if len(given) > 1:
        raise invalid("max_tokens: differs from max_completion_tokens; give one of them", "max_tokens")
    return given.pop() if given else None


def _turn(turn: ChatTurn, place: str) -> dict[str, object]:
    """A turn of the job. Raises ApiFault."""
    if turn.content is None and not turn.tool_calls:
        raise invalid(f"{place}.content: missing", f"{place}.content")
    fields: dict[str, object] = {
        "role": "system" if turn.role == "developer" else turn.role,
        "content": "".join(part.text for part in turn.content or ()),
        "reasoning": turn.reasoning_content,
        "tool_call_id": turn.tool_call_id,
        "tool_calls": [
            job_call(call.id, call.function, f"{place}.tool_calls.{number}.function")
            for number, call in enumerate(turn.tool_calls or ())
        ]
        or None,
    }
    return {name: value for name, value in fields.items() if value is not None}
