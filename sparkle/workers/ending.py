"""What is stored when a job ends: its end in a form that fits, and the metering record. Knows no engine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from sparkle.errors import FailureCode, MessageTooLarge
from sparkle.queue.persist import persist
from sparkle.schemas.answer import Failure, Result, Usage, unspelled
from sparkle.schemas.control import UsageRecord
from sparkle.schemas.subjects import JobAddress


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
    """The end itself, then smaller ones: log probabilities without texts, then none, then a Failure."""
    yield end
    if isinstance(end, Failure):
        return
    if end.logprobs is not None:
        yield end.model_copy(update={"logprobs": unspelled(end.logprobs)})
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
    end: Result | Failure, used: Usage, address: JobAddress, *, worker: str, unix_s: float
) -> UsageRecord:
    """The metering record of a stored end; `used` is what it took, for a Failure up to then."""
    return UsageRecord(
        job=end.job,
        tenant=address.tenant,
        region=address.region,
        worker=worker,
        attempt=end.attempt,
        priority=address.priority,
        outcome=end.finish_reason if isinstance(end, Result) else end.code,
        prompt_tokens=used.prompt_tokens,
        cached_tokens=used.cached_tokens,
        completion_tokens=used.completion_tokens,
        drafted_tokens=used.drafted_tokens,
        accepted_tokens=used.accepted_tokens,
        queue_s=used.queue_s,
        total_s=used.total_s,
        finished_ms=int(unix_s * 1000),
    )
