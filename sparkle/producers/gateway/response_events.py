"""A response as /v1/responses streams it: items begin, grow and end, one after the other. Knows no queue."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from sparkle.producers.gateway.answer_form import Fields, Used
from sparkle.producers.gateway.event_stream import named
from sparkle.producers.gateway.response_answer import (
    ResponseObject,
    call_item,
    message_item,
    reasoning_item,
    text_part,
)
from sparkle.producers.logprob_forms import token_logprobs
from sparkle.schemas.answer import Channel, Chunk, FinishReason, Result
from sparkle.schemas.tools import ToolCallDelta


@dataclass(slots=True)
class _Open:
    """The item that grows now."""

    kind: str
    """`reasoning`, `message` or `call`."""

    index: int
    number: int = 0
    call_id: str = ""
    name: str = ""
    pieces: list[str] = field(default_factory=list[str])
    logprobs: list[Fields] = field(default_factory=list[Fields])


class ResponseAnswer:
    """The one answer to one request."""

    end = b""

    def __init__(self, response: ResponseObject) -> None:
        self._response = response
        self._job = response.job
        self._sequence = 0
        self._num_items = 0
        self._open: _Open | None = None
        # of tokens without a text of their own: halves of a character, the end token
        self._unsent: list[Fields] = []

    def whole(self, results: Sequence[Result], used: Used) -> Fields:
        """The response object."""
        return self._response.ended(results[0], used)

    def first(self, index: int) -> Iterator[Fields]:
        """It begins."""
        yield self._event("response.created", response=self._response.under_way())
        yield self._event("response.in_progress", response=self._response.under_way())

    def deltas(self, index: int, chunk: Chunk) -> Iterator[Fields]:
        """Its text, then its tool calls."""
        if chunk.channel is Channel.ANSWER and chunk.logprobs:
            self._unsent += token_logprobs(chunk.tokens, chunk.logprobs)
        if chunk.text:
            kind = "reasoning" if chunk.channel is Channel.REASONING else "message"
            yield from self._enter(kind)
            yield self._text_delta(chunk.text)
        for delta in chunk.tool_calls:
            yield from self._call_delta(delta)

    def last(self, index: int, result: Result) -> Iterator[Fields]:
        """The item under way ends; an answer without any has an empty message."""
        if self._num_items == 0:
            yield from self._enter("message")
        if self._unsent and self._open is not None and self._open.kind == "message":
            # the end token has no text to come with
            yield self._text_delta("")
        cut = result.finish_reason is FinishReason.LENGTH
        yield from self._close("incomplete" if cut else "completed")

    def after(self, results: Sequence[Result], used: Used) -> Iterator[Fields]:
        """The response object."""
        whole = self._response.ended(results[0], used)
        yield self._event(f"response.{whole['status']}", response=whole)

    def event(self, fields: Fields) -> bytes:
        """Data with its type beside it."""
        return named(fields)

    def failed(self, error: Fields) -> Iterator[Fields]:
        """The failed response object."""
        broken = self._response.failed(str(error["code"]), str(error["message"]))
        yield self._event("response.failed", response=broken)

    def _event(self, kind: str, **fields: object) -> Fields:
        event: Fields = {"type": kind, "sequence_number": self._sequence, **fields}
        self._sequence += 1
        return event

    def _enter(self, kind: str) -> Iterator[Fields]:
        """Begin a text item, unless it is the one under way."""
        if self._open is not None and self._open.kind == kind:
            return
        yield from self._close("completed")
        item = self._begin(_Open(kind, self._num_items))
        yield self._event("response.output_item.added", output_index=item.index, item=self._item(item, None))
        yield self._event("response.content_part.added", **self._at(item), part=_part(item))

    def _begin(self, item: _Open) -> _Open:
        self._open = item
        self._num_items += 1
        return item

    def _text_delta(self, text: str) -> Fields:
        item = self._open
        assert item is not None, "entered before"
        item.pieces.append(text)
        if item.kind == "reasoning":
            return self._event("response.reasoning_text.delta", **self._at(item), delta=text)
        logprobs, self._unsent = self._unsent, []
        item.logprobs += logprobs
        place = self._at(item)
        return self._event("response.output_text.delta", **place, delta=text, logprobs=logprobs)

    def _call_delta(self, delta: ToolCallDelta) -> Iterator[Fields]:
        # what a call is written as is no text
        self._unsent = []
        if delta.name is not None:
            yield from self._close("completed")
            item = _Open("call", self._num_items, delta.index, delta.id or "", delta.name)
            self._begin(item)
            added = self._item(item, "in_progress")
            yield self._event("response.output_item.added", output_index=item.index, item=added)
        if delta.arguments and self._open is not None:
            self._open.pieces.append(delta.arguments)
            place = {"item_id": self._item_id(self._open), "output_index": self._open.index}
            yield self._event("response.function_call_arguments.delta", **place, delta=delta.arguments)

    def _close(self, status: str) -> Iterator[Fields]:
        """End the item under way, if any."""
        item, self._open = self._open, None
        if item is None:
            return
        text = "".join(item.pieces)
        if item.kind == "call":
            place = {"item_id": self._item_id(item), "output_index": item.index}
            yield self._event(
                "response.function_call_arguments.done", **place, arguments=text, name=item.name
            )
        else:
            place = self._at(item)
            if item.kind == "reasoning":
                yield self._event("response.reasoning_text.done", **place, text=text)
            else:
                yield self._event("response.output_text.done", **place, text=text, logprobs=item.logprobs)
            yield self._event("response.content_part.done", **place, part=_part(item))
        whole = self._item(item, status)
        yield self._event("response.output_item.done", output_index=item.index, item=whole)

    def _item(self, item: _Open, status: str | None) -> Fields:
        """The item as far as it is; without a status it has only begun."""
        text, state = "".join(item.pieces), status or "in_progress"
        match item.kind:
            case "reasoning":
                return reasoning_item(self._job, text, state)
            case "message" if status is None:
                return message_item(self._job, "", state, begun=True)
            case "message":
                return {**message_item(self._job, text, state), "content": [_part(item)]}
            case _:
                return call_item(self._job, item.number, item.call_id, item.name, text, state)

    def _item_id(self, item: _Open) -> str:
        return str(self._item(item, None)["id"])

    def _at(self, item: _Open) -> Fields:
        return {"item_id": self._item_id(item), "output_index": item.index, "content_index": 0}


def _part(item: _Open) -> Fields:
    text = "".join(item.pieces)
    if item.kind == "reasoning":
        return {"type": "reasoning_text", "text": text}
    return text_part(text, item.logprobs)
