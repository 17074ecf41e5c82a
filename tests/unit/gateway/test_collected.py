"""Answers at once: thinking is counted by its chunks, an attempt that wrote something else does no harm."""

from __future__ import annotations

import pytest

from sparkle.errors import FailureCode, JobFailed
from sparkle.producers.gateway.generating import collected
from sparkle.producers.handle import Handle
from sparkle.schemas.answer import Channel, Chunk, Failure, FinishReason, Result, Usage
from sparkle.schemas.ids import new_job_id


def new_handle() -> Handle:
    async def cancel() -> None:
        pass

    return Handle(new_job_id(), ask_resend=lambda _: None, cancel=cancel)


def chunk(handle: Handle, token: int, *, attempt: int = 1, channel: Channel = Channel.ANSWER) -> Chunk:
    return Chunk(
        job=handle.job_id,
        attempt=attempt,
        seq=0,
        first_index=0,
        tokens=[token],
        text=str(token),
        text_start=0,
        channel=channel,
        worker=f"w-{attempt}",
    )


def result(handle: Handle, token: int, *, attempt: int = 1, reasoning: str = "") -> Result:
    usage = Usage(prompt_tokens=3, completion_tokens=1, queue_s=0, first_token_s=0, total_s=0)
    return Result(
        job=handle.job_id,
        attempt=attempt,
        worker=f"w-{attempt}",
        text="" if reasoning else str(token),
        reasoning=reasoning,
        tokens=[token],
        finish_reason=FinishReason.STOP,
        usage=usage,
    )


async def test_choices_come_in_their_order_with_what_was_thought() -> None:
    first, second = new_handle(), new_handle()
    second.on_chunk(chunk(second, 2, channel=Channel.REASONING))
    second.on_end(result(second, 2, reasoning="2"))
    first.on_chunk(chunk(first, 1))
    first.on_end(result(first, 1))
    tally = await collected([first, second])
    assert [one.job for one in tally.in_order()] == [first.job_id, second.job_id]
    used = tally.used()
    assert (used.prompt_tokens, used.completion_tokens, used.reasoning_tokens) == (6, 2, 1)


@pytest.mark.parametrize("count", [1, 2])
async def test_an_answer_that_changed_is_the_one_that_was_stored(count: int) -> None:
    handles = [new_handle() for _ in range(count)]
    for handle in handles:
        handle.on_chunk(chunk(handle, 1))
        handle.on_chunk(chunk(handle, 7, attempt=2))
        handle.on_end(result(handle, 7, attempt=2))
    assert [one.text for one in (await collected(handles)).in_order()] == ["7"] * count


async def test_one_that_fails_fails_all() -> None:
    fine, broken = new_handle(), new_handle()
    fine.on_end(result(fine, 1))
    broken.on_end(Failure(job=broken.job_id, code=FailureCode.TOO_LONG, message="x", retryable=False))
    with pytest.raises(JobFailed, match="too_long"):
        await collected([fine, broken])
