"""Answers in the forms of /v1/completions, whole and in pieces. Knows no request and no queue."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from sparkle.producers.gateway.answer_form import Fields, Used, token_name
from sparkle.producers.gateway.event_stream import DONE, data
from sparkle.schemas.answer import Chunk, Result, TokenLogprobs


class CompletionAnswer:
    """The answer to one request: its id, its time, its model."""

    end = DONE

    def __init__(self, job: str, *, created_s: int, model: str, with_usage: bool) -> None:
        """`job` is the first choice's; `with_usage` is about streams."""
        self._head: Fields = {
            "id": f"cmpl-{job}",
            "object": "text_completion",
            "created": created_s,
            "model": model,
        }
        self._piece_head = {**self._head, "usage": None} if with_usage else self._head
        self._with_usage = with_usage

    def whole(self, results: Sequence[Result], used: Used) -> Fields:
        """The completion."""
        choices = [
            _choice(
                index,
                result.text,
                logprobs=_logprobs(result.tokens, result.logprobs),
                finish_reason=str(result.finish_reason),
            )
            for index, result in enumerate(results)
        ]
        return {**self._head, "choices": choices, "usage": used.in_chat_form()}

    def first(self, index: int) -> Iterable[Fields]:
        """Nothing: a completion has no role."""
        return ()

    def deltas(self, index: int, chunk: Chunk) -> Iterator[Fields]:
        """Its text."""
        logprobs = _logprobs(chunk.tokens, chunk.logprobs)
        if chunk.text or logprobs is not None:
            yield {**self._piece_head, "choices": [_choice(index, chunk.text, logprobs=logprobs)]}

    def last(self, index: int, result: Result) -> Iterator[Fields]:
        """The finish reason."""
        choice = _choice(index, "", finish_reason=str(result.finish_reason))
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


def _logprobs(tokens: Sequence[int], entries: Sequence[TokenLogprobs] | None) -> Fields | None:
    """One entry a token; where a token begins in the text is not known."""
    if not entries:
        return None
    return {
        "tokens": [token_name(token) for token in tokens],
        "token_logprobs": [entry.logprob for entry in entries],
        "top_logprobs": [{token_name(one.token): one.logprob for one in entry.top} for entry in entries],
        "text_offset": None,
    }


def _choice(index: int, text: str, *, logprobs: object = None, finish_reason: str | None = None) -> Fields:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}
