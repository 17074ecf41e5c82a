"""How far an answer has come: what a worker asks its producer, and what is known. Knows no queue."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal, Self

from pydantic import Field

from sparkle.schemas.answer import Count, TokenLogprobs, unspelled
from sparkle.schemas.job import MAX_CONTEXT_TOKENS
from sparkle.schemas.message import JobId, Message, TokenId


class Ask(Message):
    """A worker asks a job's producer which tokens it has. Any answer says that somebody still waits."""

    kind: Literal["ask"] = "ask"

    job: JobId
    """Of which job."""

    from_index: Count
    """The first token wanted; all later ones follow. With as many as the worker has sent, none comes back."""


class Answered(Message):
    """The answer to an Ask; or, stored by a worker, what it wrote for a producer that is away."""

    kind: Literal["answered"] = "answered"

    job: JobId
    """Of which job."""

    attempt: Count
    """The last delivery that wrote any of it; 0 where nothing has come."""

    tokens: Annotated[list[TokenId], Field(max_length=MAX_CONTEXT_TOKENS)]
    """The tokens asked for, without a gap."""

    logprobs: list[TokenLogprobs] | None = None
    """One entry a token, where the job asked for them."""

    strikes: Count = 0
    """How often in a row an engine ended with this job in it."""

    def forms(self) -> Iterator[Self]:
        """Itself, then without the texts of its log probabilities: so it fits the queue whatever it holds."""
        yield self
        if self.logprobs is not None:
            yield self.model_copy(update={"logprobs": unspelled(self.logprobs)})
