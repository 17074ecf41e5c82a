"""What a worker answers: chunks as they come, then one result or one failure. Knows no queue."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from sparkle.errors import FailureCode
from sparkle.schemas.message import JobId, Message, Name, Part, TokenId
from sparkle.schemas.tools import MAX_CALLS, ToolCall, ToolCallDelta

Count = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(ge=0.0)]


class Channel(StrEnum):
    """Which of the two texts of an answer a token belongs to."""

    REASONING = "reasoning"
    ANSWER = "answer"


class FinishReason(StrEnum):
    """Why an answer ended."""

    STOP = "stop"  #: an end token, a stop token or a stop string
    LENGTH = "length"  #: max_tokens was reached
    TOOL_CALLS = "tool_calls"  #: it called functions, and waits for what comes of them


class Spelling(Part):
    """How a token is written."""

    text: Annotated[str, StringConstraints(max_length=1024)] | None = None
    """Its text; a byte that is no character of itself as `\\xe2`, a control token by its name. None of an id
    that no token has, of workers that speak 1.2, and where a message has no room for it."""

    octets: Annotated[bytes, Field(max_length=1024)] | None = None
    """The bytes that it adds to the answer, where they are not those of `text`: none of a control token."""


class Alternative(Spelling):
    """A token and its log probability before temperature and truncation."""

    token: TokenId
    logprob: float


class TokenLogprobs(Spelling):
    """The log probability of the token drawn, and of the likeliest ones."""

    logprob: float
    top: Annotated[list[Alternative], Field(max_length=20)]


def unspelled(entries: Sequence[TokenLogprobs]) -> list[TokenLogprobs]:
    """The same figures without texts and octets, in two thirds of the bytes."""
    return [
        TokenLogprobs(
            logprob=entry.logprob,
            top=[Alternative(token=one.token, logprob=one.logprob) for one in entry.top],
        )
        for entry in entries
    ]


class Chunk(Message):
    """Some tokens of an answer, sent as they come. Tokens of one chunk are of one channel."""

    kind: Literal["chunk"] = "chunk"

    job: JobId
    """The job answered."""

    attempt: Annotated[int, Field(ge=1)]
    """Which delivery of the job wrote this; a higher one replaces a lower one."""

    seq: Count
    """Place of this chunk in its attempt, from 0, without a gap."""

    first_index: Count
    """Place of the first token in the whole answer, thinking included."""

    tokens: list[TokenId]
    """The tokens; may be empty where only held-back text follows."""

    text: str
    """The text that became final with these tokens: never half a character or half a stop string."""

    text_start: Count
    """Code points of this channel's text before this chunk."""

    channel: Channel
    """Which text this belongs to."""

    worker: Name
    """Who wrote it, and can send it again."""

    tool_calls: list[ToolCallDelta] = Field(default_factory=list[ToolCallDelta])
    """More of the answer's calls, in order; what they are written as is no text."""

    logprobs: list[TokenLogprobs] | None = None
    """One entry a token, where the job asked for them."""


class Usage(Part):
    """What a job used: counts and times only."""

    prompt_tokens: Count
    """Tokens of the prompt."""

    cached_tokens: Count = 0
    """Of these, read from a cache."""

    completion_tokens: Count
    """Tokens of the answer, thinking and end token included."""

    drafted_tokens: Count = 0
    """Tokens guessed and checked."""

    accepted_tokens: Count = 0
    """Of these, the ones in the answer."""

    queue_s: Seconds
    """From storing in the queue to the lease."""

    first_token_s: Seconds
    """From the lease to the first token."""

    total_s: Seconds
    """From the lease to the end of the answer."""


class Result(Message):
    """The whole answer: stored until the producer has it."""

    kind: Literal["result"] = "result"

    job: JobId
    """The job answered."""

    attempt: Annotated[int, Field(ge=1)]
    """Which delivery of the job this is of."""

    worker: Name
    """Who wrote it, and may hold the conversation's state for a while."""

    text: str
    """The answer."""

    reasoning: str = ""
    """What the model thought first."""

    tool_calls: Annotated[list[ToolCall], Field(max_length=MAX_CALLS)] = Field(default_factory=list[ToolCall])
    """Calls of functions, after the text. One that max_tokens cut off is left out."""

    valid: bool | None = None
    """Whether the answer is of the shape that the job asked for, where that was not enforced to its end:
    a shape with `strict` off, or an end by max_tokens, a stop string or a stop token. None where nothing was
    asked for, where it was enforced, and where no check was possible."""

    tokens: list[TokenId]
    """All tokens, thinking and end token included."""

    finish_reason: FinishReason
    """Why it ended."""

    usage: Usage
    """What it used."""

    logprobs: list[TokenLogprobs] | None = None
    """One entry a token, where the job asked for them."""


class Failure(Message):
    """The job ended without an answer."""

    kind: Literal["failure"] = "failure"

    job: JobId
    """The job that failed."""

    attempt: Annotated[int, Field(ge=1)] = 1
    """Which delivery of the job this is of."""

    code: FailureCode
    """Why, for programs."""

    message: Annotated[str, StringConstraints(max_length=2000)]
    """Why, for people; holds no content."""

    retryable: bool
    """Whether the same job can succeed later."""
