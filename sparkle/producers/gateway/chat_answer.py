"""Answers in the forms of /v1/chat/completions, whole and in pieces. Knows no request and no queue."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from sparkle.producers.gateway.answer_form import Fields, Used, token_logprobs
from sparkle.producers.gateway.event_stream import DONE, data
from sparkle.producers.openai_forms import openai_calls
from sparkle.schemas.answer import Channel, Chunk, Result, TokenLogprobs
from sparkle.schemas.tools import ToolCallDelta


class ChatAnswer:
    """The answer to one request: its id, its time, its model."""

    end = DONE

    def __init__(self, job: str, *, created_s: int, model: str, with_usage: bool) -> None:
        """`job` is the first choice's; `with_usage` is about streams."""
        self._head: Fields = {"id": f"chatcmpl-{job}", "created": created_s, "model": model}
        self._piece_head: Fields = {**self._head, "object": "chat.completion.chunk"}
        if with_usage:
            self._piece_head["usage"] = None
        self._with_usage = with_usage

    def whole(self, results: Sequence[Result], used: Used) -> Fields:
        """The chat completion."""
        choices = [
            {
                "index": index,
                "message": message(result),
                "logprobs": _logprobs(result.tokens, result.logprobs),
                **_ended(result),
            }
            for index, result in enumerate(results)
        ]
        return {
            **self._head,
            "object": "chat.completion",
            "choices": choices,
            "usage": used.in_chat_form(),
        }

    def first(self, index: int) -> Iterator[Fields]:
        """The role."""
        yield self._piece(index, {"role": "assistant", "content": ""})

    def deltas(self, index: int, chunk: Chunk) -> Iterator[Fields]:
        """Its text, then its tool calls."""
        logprobs = _logprobs(chunk.tokens, chunk.logprobs)
        if chunk.text or logprobs is not None:
            name = "reasoning_content" if chunk.channel is Channel.REASONING else "content"
            yield self._piece(index, {name: chunk.text}, logprobs=logprobs)
        if chunk.tool_calls:
            yield self._piece(index, {"tool_calls": [_call_delta(delta) for delta in chunk.tool_calls]})

    def last(self, index: int, result: Result) -> Iterator[Fields]:
        """The finish reason."""
        choice: Fields = {"index": index, "delta": {}, "logprobs": None, **_ended(result)}
        yield {**self._piece_head, "choices": [choice]}

    def after(self, results: Sequence[Result], used: Used) -> Iterator[Fields]:
        """What all choices used, where that is asked for."""
        if self._with_usage:
            yield {**self._piece_head, "choices": [], "usage": used.in_chat_form()}

    def event(self, fields: Fields) -> bytes:
        """Data alone."""
        return data(fields)

    def failed(self, error: Fields) -> Iterator[Fields]:
        """The error alone."""
        yield {"error": error}

    def _piece(self, index: int, delta: Mapping[str, object], *, logprobs: object = None) -> Fields:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": None}
        return {**self._piece_head, "choices": [choice]}


def _ended(result: Result) -> Fields:
    """Why a choice ended; and whether it is of the shape asked for, where that was not enforced."""
    reason: Fields = {"finish_reason": str(result.finish_reason)}
    return reason if result.valid is None else {**reason, "valid": result.valid}


def message(result: Result) -> Fields:
    """The assistant's turn."""
    calls = openai_calls(result.tool_calls)
    fields: Fields = {
        "role": "assistant",
        "content": None if calls and not result.text else result.text,
        "refusal": None,
    }
    if result.reasoning:
        fields["reasoning_content"] = result.reasoning
    return {**fields, "tool_calls": calls} if calls else fields


def _call_delta(delta: ToolCallDelta) -> Fields:
    if delta.name is None:
        return {"index": delta.index, "function": {"arguments": delta.arguments}}
    function = {"name": delta.name, "arguments": delta.arguments}
    return {"index": delta.index, "id": delta.id, "type": "function", "function": function}


def _logprobs(tokens: Sequence[int], entries: Sequence[TokenLogprobs] | None) -> Fields | None:
    return {"content": token_logprobs(tokens, entries), "refusal": None} if entries else None
