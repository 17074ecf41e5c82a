"""Answers in the forms of /v1/completions, whole and in pieces. Knows no request and no queue."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from sparkle.producers.gateway.answer_form import Fields, Used
from sparkle.producers.gateway.plain_stream import PlainStream
from sparkle.producers.logprob_forms import CompletionLogprobs
from sparkle.schemas.answer import Chunk, Result


class CompletionAnswer(PlainStream):
    """The answer to one request: its id, its time, its model."""

    def __init__(self, job: str, *, created_s: int, model: str, with_usage: bool) -> None:
        """`job` is the first choice's; `with_usage` is about streams."""
        self._whole_head: Fields = {
            "id": f"cmpl-{job}",
            "object": "text_completion",
            "created": created_s,
            "model": model,
        }
        super().__init__(self._whole_head, with_usage=with_usage)
        self._streamed = defaultdict[int, CompletionLogprobs](CompletionLogprobs)

    def whole(self, results: Sequence[Result], used: Used) -> Fields:
        """The completion."""
        choices = [
            _choice(
                index,
                result.text,
                logprobs=CompletionLogprobs().of(result.tokens, result.logprobs),
                finish_reason=str(result.finish_reason),
            )
            for index, result in enumerate(results)
        ]
        return {**self._whole_head, "choices": choices, "usage": used.in_chat_form()}

    def first(self, index: int) -> Iterable[Fields]:
        """Nothing: a completion has no role."""
        return ()

    def deltas(self, index: int, chunk: Chunk) -> Iterator[Fields]:
        """Its text."""
        logprobs = self._streamed[index].of(chunk.tokens, chunk.logprobs)
        if chunk.text or logprobs is not None:
            yield self.piece(_choice(index, chunk.text, logprobs=logprobs))

    def last(self, index: int, result: Result) -> Iterator[Fields]:
        """The finish reason."""
        yield self.piece(_choice(index, "", finish_reason=str(result.finish_reason)))


def _choice(index: int, text: str, *, logprobs: object = None, finish_reason: str | None = None) -> Fields:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}
