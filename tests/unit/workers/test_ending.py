"""An end that does not fit is stored in a smaller form; a metering record holds counts and times only."""

from __future__ import annotations

from sparkle.errors import FailureCode
from sparkle.schemas.answer import Alternative, Failure, FinishReason, Result, TokenLogprobs, Usage
from sparkle.schemas.codec import encode
from sparkle.schemas.ids import new_job_id
from sparkle.schemas.priority import PriorityClass
from sparkle.schemas.subjects import JobAddress
from sparkle.workers.ending import forms, store_end, usage_record
from sparkle.workers.job_times import JobTimes

JOB = new_job_id()
ADDRESS = JobAddress(region="eu", priority=PriorityClass.P3, tenant="acme", job=JOB)
RESULT = Result(
    job=JOB,
    attempt=2,
    worker="w-1",
    text="SECRET " * 20,
    tokens=[1, 2],
    finish_reason=FinishReason.STOP,
    usage=Usage(prompt_tokens=5, completion_tokens=2, queue_s=0.5, first_token_s=0.1, total_s=0.2),
    logprobs=[
        TokenLogprobs(
            logprob=-1.0, text="SECRET", top=[Alternative(token=1, logprob=-1.0, text="SECRET", octets=b"S")]
        ),
        TokenLogprobs(logprob=-2.0, text="SECRET", octets=b"", top=[]),
    ],
)
FAILURE = Failure(job=JOB, attempt=2, code=FailureCode.CANCELLED, message="x", retryable=False)


class Queue:
    """Takes ends up to a size."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes

    async def store_end(self, tenant: str, end: Result | Failure) -> bool:
        assert tenant == "acme"
        encode(end, limit_bytes=self._limit_bytes)
        return True


async def stored_under(limit_bytes: int) -> Result | Failure:
    form, stands = await store_end(Queue(limit_bytes), "acme", RESULT)
    assert stands
    return form


async def test_an_end_that_fits_is_stored_as_it_is() -> None:
    assert await stored_under(len(encode(RESULT))) == RESULT


async def test_the_texts_of_log_probabilities_go_first() -> None:
    figures = [
        TokenLogprobs(logprob=-1.0, top=[Alternative(token=1, logprob=-1.0)]),
        TokenLogprobs(logprob=-2.0, top=[]),
    ]
    smaller = RESULT.model_copy(update={"logprobs": figures})
    assert await stored_under(len(encode(RESULT)) - 1) == smaller
    assert await stored_under(len(encode(smaller))) == smaller


async def test_then_the_log_probabilities_go() -> None:
    with_figures = [*forms(RESULT)][1]
    smaller = RESULT.model_copy(update={"logprobs": None})
    assert await stored_under(len(encode(with_figures)) - 1) == smaller
    assert await stored_under(len(encode(smaller))) == smaller


async def test_then_the_answer_goes_and_a_failure_says_so() -> None:
    without = len(encode(RESULT.model_copy(update={"logprobs": None})))
    failure = await stored_under(without - 1)
    assert isinstance(failure, Failure)
    assert (failure.job, failure.attempt, failure.code) == (JOB, 2, FailureCode.ENGINE_ERROR)
    assert failure.message.startswith("the answer of 2 tokens is larger than the queue's limit")
    assert "SECRET" not in failure.message
    assert failure.retryable is False


def test_a_failure_has_one_form() -> None:
    assert list(forms(FAILURE)) == [FAILURE]


UNTIL_THEN = Usage(prompt_tokens=7, completion_tokens=3, queue_s=0.5, first_token_s=1.0, total_s=2.5)


def record(end: Result | Failure, used: Usage) -> dict[str, object]:
    made = usage_record(end, used, ADDRESS, worker="w-1", unix_s=1000.25)
    assert (made.job, made.tenant, made.region, made.worker, made.attempt) == (JOB, "acme", "eu", "w-1", 2)
    return made.model_dump(exclude={"v", "kind", "job", "tenant", "region", "worker", "attempt"})


def test_a_results_record_has_the_results_counts() -> None:
    assert record(RESULT, RESULT.usage) == {
        "outcome": FinishReason.STOP,
        "prompt_tokens": 5,
        "cached_tokens": 0,
        "completion_tokens": 2,
        "drafted_tokens": 0,
        "accepted_tokens": 0,
        "queue_s": 0.5,
        "total_s": 0.2,
        "finished_ms": 1_000_250,
        "priority": PriorityClass.P3,
    }


def test_a_failures_record_has_what_was_used_until_then() -> None:
    assert record(FAILURE, UNTIL_THEN) == {
        "outcome": FailureCode.CANCELLED,
        "prompt_tokens": 7,
        "cached_tokens": 0,
        "completion_tokens": 3,
        "drafted_tokens": 0,
        "accepted_tokens": 0,
        "queue_s": 0.5,
        "total_s": 2.5,
        "finished_ms": 1_000_250,
        "priority": PriorityClass.P3,
    }


def test_times_never_go_below_nought_and_keep_the_first_token() -> None:
    times = JobTimes.begin(stored_s=100.0, unix_s=99.5, now_s=10.0)
    assert times.queue_s == 0.0
    assert times.until_first_token_s(10.125) == 0.125
    times.token_came(10.25)
    times.token_came(11.0)
    assert (times.first_token_s, times.total_s(12.0)) == (0.25, 2.0)
    assert times.until_first_token_s(12.0) == 0.25
