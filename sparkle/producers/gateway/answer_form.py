"""What an endpoint's answer is made of, whole and in pieces; and what all of them tell. Knows no endpoint."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from sparkle.schemas.answer import Chunk, Result

Fields = dict[str, object]


@dataclass(frozen=True, slots=True)
class Used:
    """What the answers of one request used, each choice with its own reading of the prompt."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    reasoning_tokens: int
    drafted_tokens: int
    accepted_tokens: int

    @classmethod
    def of(cls, results: Iterable[Result], *, reasoning_tokens: int) -> Used:
        """The sum of them."""
        used = [result.usage for result in results]
        return cls(
            prompt_tokens=sum(one.prompt_tokens for one in used),
            cached_tokens=sum(one.cached_tokens for one in used),
            completion_tokens=sum(one.completion_tokens for one in used),
            reasoning_tokens=reasoning_tokens,
            drafted_tokens=sum(one.drafted_tokens for one in used),
            accepted_tokens=sum(one.accepted_tokens for one in used),
        )

    @property
    def total_tokens(self) -> int:
        """What is metered."""
        return self.prompt_tokens + self.completion_tokens

    def in_chat_form(self) -> Fields:
        """As chat completions and completions have it."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.total_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
            "completion_tokens_details": {
                "reasoning_tokens": self.reasoning_tokens,
                "accepted_prediction_tokens": self.accepted_tokens,
                "rejected_prediction_tokens": self.drafted_tokens - self.accepted_tokens,
            },
        }


class AnswerForm(Protocol):
    """One request's answer: made anew for each."""

    def whole(self, results: Sequence[Result], used: Used) -> Fields:
        """The answer at once, one choice a result."""
        ...

    def first(self, index: int) -> Iterable[Fields]:
        """A choice begins."""
        ...

    def deltas(self, index: int, chunk: Chunk) -> Iterable[Fields]:
        """A chunk of a choice has come."""
        ...

    def last(self, index: int, result: Result) -> Iterable[Fields]:
        """A choice has ended."""
        ...

    def after(self, results: Sequence[Result], used: Used) -> Iterable[Fields]:
        """All choices have ended."""
        ...

    def event(self, fields: Fields) -> bytes:
        """One of these as a server-sent event."""
        ...

    def failed(self, error: Fields) -> Iterable[Fields]:
        """The answer broke off in the middle; `error` is OpenAI's error object."""
        ...

    @property
    def end(self) -> bytes:
        """What a stream that did not break off ends with."""
        ...
