"""Answers in the forms of /v1/chat/completions, whole and in pieces. Knows no request and no queue."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from sparkle.producers.chat_choice import chat_choice, chat_end
from sparkle.producers.gateway.answer_form import Fields, Used
from sparkle.producers.gateway.plain_stream import PlainStream
from sparkle.producers.logprob_forms import chat_logprobs
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
        return {
            **self._whole_head,
            "object": "chat.completion",
            "choices": [chat_choice(index, result) for index, result in enumerate(results)],
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
        yield self.piece({"index": index, "delta": {}, "logprobs": None, **chat_end(result)})

    def _delta(self, index: int, delta: Mapping[str, object], *, logprobs: object = None) -> Fields:
        return self.piece({"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": None})


def _call_delta(delta: ToolCallDelta) -> Fields:
    if delta.name is None:
        return {"index": delta.index, "function": {"arguments": delta.arguments}}
    function = {"name": delta.name, "arguments": delta.arguments}
    return {"index": delta.index, "id": delta.id, "type": "function", "function": function}
