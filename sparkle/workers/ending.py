"""What is stored when a job ends: its end in a form that fits, and the metering record. Knows no engine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from sparkle.errors import FailureCode, MessageTooLarge
from sparkle.schemas.answer import Failure, Result
from sparkle.schemas.control import UsageRecord
from sparkle.schemas.subjects import JobAddress
from sparkle.workers.job_times import JobTimes
from sparkle.workers.persist import persist


class EndStore(Protocol):
    """Where ends are stored: `queue.replies.ReplyStream`."""

    async def store_end(self, tenant: str, end: Result | Failure) -> bool:
        """Whether it stands. Raises MessageTooLarge, or QueueError while it cannot be stored."""
        ...


async def store_end(replies: EndStore, tenant: str, end: Result | Failure) -> tuple[Result | Failure, bool]:
    """Store `end`, or the largest form of it that fits; waits for as long as the queue cannot.

    Returns what was sent, and whether it stands: False when another end was stored first.
    """
    for form in forms(end):
        try:
            return form, await persist(replies.store_end, tenant, form)
        except MessageTooLarge:
            continue
    raise AssertionError("a failure of two lines fits any queue")


def forms(end: Result | Failure) -> Iterator[Result | Failure]:
    """The end itself, then smaller ones: without log probabilities, then a Failure that says why."""
    yield end
    if isinstance(end, Failure):
        return
    if end.logprobs is not None:
        yield end.model_copy(update={"logprobs": None})
    yield Failure(
        job=end.job,
        attempt=end.attempt,
        code=FailureCode.ENGINE_ERROR,
        message=(
            f"the answer of {len(end.tokens)} tokens is larger than the queue's limit for one message; "
            "ask for fewer with max_tokens"
        ),
        retryable=False,
    )


def usage_record(
    end: Result | Failure,
    address: JobAddress,
    *,
    worker: str,
    times: JobTimes,
    prompt_tokens: int,
    completion_tokens: int,
    now_s: float,
    unix_s: float,
) -> UsageRecord:
    """The metering record of a stored end; the counts are used where the end itself has none."""
    finished_ms = int(unix_s * 1000)
    if isinstance(end, Result):
        return UsageRecord.of(
            end,
            tenant=address.tenant,
            region=address.region,
            priority=address.priority,
            finished_ms=finished_ms,
        )
    return UsageRecord(
        job=end.job,
        tenant=address.tenant,
        region=address.region,
        worker=worker,
        attempt=end.attempt,
        priority=address.priority,
        outcome=end.code,
        prompt_tokens=prompt_tokens,
        cached_tokens=0,
        completion_tokens=completion_tokens,
        drafted_tokens=0,
        accepted_tokens=0,
        queue_s=times.queue_s,
        total_s=times.total_s(now_s),
        finished_ms=finished_ms,
    )
