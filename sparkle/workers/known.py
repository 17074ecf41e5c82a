"""What is known of an answer that another attempt began: the producer's word and what was stored, as one.

Knows no engine.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sparkle.schemas.answer import TokenLogprobs
from sparkle.schemas.answered import Answered
from sparkle.schemas.job import Job


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What earlier attempts wrote."""

    attempt: int = 0
    """The last of them that wrote anything; 0 for none."""

    tokens: list[int] = field(default_factory=list[int])
    """The answer's first tokens."""

    logprobs: list[TokenLogprobs] | None = None
    """One entry a token, where the job asked for them."""

    producer_tokens: int = 0
    """So many tokens the producer has."""

    strikes: int = 0
    """How often in a row an engine ended with this job in it."""


NOTHING = Known()
"""Of a job's first attempt."""


def known_of(job: Job, asked: Answered | None, stored: Answered | None) -> Known:
    """The longer of what the producer has and what was stored, where they agree; else the producer's.

    What the producer has may have been read already, so that counts. Either is None where there is none.
    """
    has = [] if asked is None else asked.tokens
    longer = stored if stored is not None and stored.tokens[: len(has)] == has else asked
    tokens, logprobs = ([], None) if longer is None else (longer.tokens, longer.logprobs)
    if job.sampling.logprobs is not None and len(logprobs or ()) != len(tokens):
        # the result could not tell how likely these were: they are written anew
        tokens, logprobs = [], None
    return Known(
        attempt=max(one.attempt for one in (asked, stored, NOTHING) if one is not None),
        tokens=tokens,
        logprobs=logprobs,
        producer_tokens=len(has),
        strikes=0 if stored is None else stored.strikes,
    )
