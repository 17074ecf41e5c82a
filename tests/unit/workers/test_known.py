"""The producer's tokens count; what was stored goes further only where it agrees with them."""

from __future__ import annotations

from sparkle.schemas.answer import TokenLogprobs
from sparkle.schemas.answered import Answered
from sparkle.schemas.job import Job, Sampling
from sparkle.workers.known import NOTHING, known_of

JOB = Job(prompt="x")
WITH_LOGPROBS = JOB.model_copy(update={"sampling": Sampling(logprobs=0)})


def answered(*tokens: int, attempt: int = 1, strikes: int = 0, logprobs: int | None = None) -> Answered:
    entries = None if logprobs is None else [TokenLogprobs(logprob=-1.0, top=[])] * logprobs
    return Answered(job=JOB.id, attempt=attempt, tokens=[*tokens], strikes=strikes, logprobs=entries)


def test_without_either_nothing_is_known() -> None:
    assert known_of(JOB, None, None) == NOTHING


def test_the_producers_tokens_are_gone_on_with() -> None:
    known = known_of(JOB, answered(1, 2, attempt=3), None)
    assert (known.tokens, known.producer_tokens, known.attempt, known.strikes) == ([1, 2], 2, 3, 0)


def test_what_was_stored_serves_a_producer_that_is_away() -> None:
    known = known_of(JOB, None, answered(1, 2, attempt=2, strikes=1))
    assert (known.tokens, known.producer_tokens, known.attempt, known.strikes) == ([1, 2], 0, 2, 1)


def test_the_longer_of_two_that_agree_is_taken_and_the_producer_is_sent_what_it_lacks() -> None:
    known = known_of(JOB, answered(1, 2, attempt=1), answered(1, 2, 3, attempt=2))
    assert (known.tokens, known.producer_tokens, known.attempt) == ([1, 2, 3], 2, 2)
    known = known_of(JOB, answered(1, 2, 3, attempt=2), answered(1, strikes=2))
    assert (known.tokens, known.producer_tokens, known.attempt, known.strikes) == ([1, 2, 3], 3, 2, 2)


def test_what_the_producer_has_is_never_changed() -> None:
    known = known_of(JOB, answered(1, 2), answered(1, 7, 3, attempt=2))
    assert (known.tokens, known.producer_tokens) == ([1, 2], 2)


def test_tokens_without_their_logprobs_are_written_anew_where_the_job_asks_for_them() -> None:
    assert known_of(WITH_LOGPROBS, answered(1, 2, logprobs=2), None).tokens == [1, 2]
    for lacking in (answered(1, 2), answered(1, 2, logprobs=1)):
        known = known_of(WITH_LOGPROBS, lacking, None)
        assert (known.tokens, known.logprobs, known.producer_tokens) == ([], None, 2)
