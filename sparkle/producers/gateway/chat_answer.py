"""Answers in the forms of /v1/chat/completions, whole and in pieces. Knows no request and no queue."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from sparkle.producers.gateway.answer_form import Fields, Used
from sparkle.producers.gateway.plain_stream import PlainStream
from sparkle.producers.logprob_forms import chat_logprobs
from sparkle.producers.openai_forms import openai_calls
from sparkle.schemas.answer import Channel, Chunk, Result
from sparkle.schemas.tools import ToolCallDelta


class ChatAnswer(PlainStream):
    """The answer to one request: its id, its time, its model."""

    def __init__(self, job: str, *, created_s: int, model: str, with_usage: bool) -> None:
        """`job` is the first choice's; `with_usage` is about streams."""
        self._whole_head: Fields = {"id": f"chatcmpl-{job}", "created": created_s, "model": model}
        super().__init__({**self._whole_head, "object": "chat.completion.chunk"}, with_usage=with_usage)

    def whole(self, results: Sequence[Result], used: Used) -> Fields:
        """The chat completion."""
        choices = [
            {
                "index": index,
                "message": message(result),
                "logprobs": chat_logprobs(result.tokens, result.logprobs),
                **_ended(result),
            }
            for index, result in enumerate(results)
        ]
        return {
            **self._whole_head,
            "object": "chat.completion",
            "choices": choices,
            "usage": used.in_chat_form(),
        }

    def first(self, index: int) -> Iterator[Fields]:
        """The role."""
        yield self._delta(index, {"role": "assistant", "content": ""})

    def deltas(self, index: int, chunk: Chunk) -> Iterator[Fields]:
        """Its text, then its tool calls."""
        logprobs = chat_logprobs(chunk.tokens, chunk.logprobs)
        if chunk.text or logprobs is not None:
            name = "reasoning_content" if chunk.channel is Channel.REASONING else "content"
            yield self._delta(index, {name: chunk.text}, logprobs=logprobs)
        if chunk.tool_calls:
            yield self._delta(index, {"tool_calls": [_call_delta(delta) for delta in chunk.tool_calls]})

    def last(self, index: int, result: Result) -> Iterator[Fields]:
        """The finish reason."""
        yield self.piece({"index": index, "delta": {}, "logprobs": None, **_ended(result)})

    def _delta(self, index: int, delta: Mapping[str, object], *, logprobs: object = None) -> Fields:
        return self.piece({"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": None})


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
