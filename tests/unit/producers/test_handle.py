"""A handle fed by hand: what its reader sees, in which order, and how it ends."""

from __future__ import annotations

import asyncio

import pytest

from sparkle.errors import AnswerChanged, FailureCode, JobFailed, NotConnected
from sparkle.producers.answer_order import Gap
from sparkle.producers.handle import MERGED_TOKENS, Handle
from sparkle.schemas.answer import Channel, Chunk, Failure, FinishReason, Result, TokenLogprobs, Usage

JOB = "01890a5d-ac96-774b-bcce-b302099a8057"
USAGE = Usage(prompt_tokens=1, completion_tokens=1, queue_s=0, first_token_s=0, total_s=0)
FAILURE = Failure(job=JOB, code=FailureCode.TOO_LONG, message="prompt has 9 tokens, limit 8", retryable=False)


class Worker:
    """Stands for the way to the worker: counts what the handle asks of it."""

    def __init__(self) -> None:
        self.gaps: list[Gap] = []
        self.asked = asyncio.Event()
        self.cancels = 0
        self.handle = Handle(JOB, ask_resend=self.ask_resend, cancel=self.cancel)

    def ask_resend(self, gap: Gap) -> None:
        self.gaps.append(gap)
        self.asked.set()

    async def cancel(self) -> None:
        self.cancels += 1


def chunk(index: int, *, attempt: int = 1, token: int | None = None) -> Chunk:
    return Chunk(
        job=JOB,
        attempt=attempt,
        seq=index,
        first_index=index,
        tokens=[index if token is None else token],
        text=chr(97 + index % 26),
        text_start=index,
        channel=Channel.ANSWER,
        worker="w1",
    )


def result(length: int, *, attempt: int = 1) -> Result:
    return Result(
        job=JOB,
        attempt=attempt,
        worker="w1",
        text="".join(chr(97 + index % 26) for index in range(length)),
        tokens=list(range(length)),
        finish_reason=FinishReason.STOP,
        usage=USAGE,
    )


async def text_of(handle: Handle) -> str:
    return "".join([part.text async for part in handle])


async def test_a_reader_sees_the_answer_and_then_the_end() -> None:
    handle = Worker().handle
    reading = asyncio.create_task(text_of(handle))
    for index in range(3):
        handle.on_chunk(chunk(index))
        await asyncio.sleep(0)
    assert not handle.done
    handle.on_end(result(3))
    assert await reading == "abc"
    assert (await handle.result()).tokens == [0, 1, 2]
    assert await handle.text() == "abc"
    # a stream read to its end stays at its end
    assert await text_of(handle) == ""


async def test_the_result_fills_what_was_lost_at_the_end() -> None:
    handle = Worker().handle
    handle.on_chunk(chunk(0))
    handle.on_end(result(4))
    assert await text_of(handle) == "abcd"


async def test_what_nobody_reads_is_merged() -> None:
    handle = Worker().handle
    for index in range(3 * MERGED_TOKENS):
        handle.on_chunk(chunk(index))
    handle.on_end(result(3 * MERGED_TOKENS))
    parts = [part async for part in handle]
    assert [len(part.tokens) for part in parts] == [MERGED_TOKENS] * 3
    assert [token for part in parts for token in part.tokens] == list(range(3 * MERGED_TOKENS))
    assert "".join(part.text for part in parts) == result(3 * MERGED_TOKENS).text


async def test_merging_keeps_every_tokens_log_probability() -> None:
    """Also beside a chunk of text alone, as comes where text was held back for a stop string."""
    handle = Worker().handle
    for index in range(4):
        part = chunk(index)
        textual: dict[str, object] = {"tokens": [], "first_index": (index + 1) // 2}
        asked: dict[str, object] = {
            "first_index": index // 2,
            "logprobs": [TokenLogprobs(logprob=-float(index), top=[])],
        }
        handle.on_chunk(part.model_copy(update=textual if index % 2 else asked))
    part = await anext(handle)
    assert (part.tokens, part.text) == ([0, 2], "abcd")
    assert part.logprobs is not None
    assert [entry.logprob for entry in part.logprobs] == [0.0, -2.0]


async def test_a_changed_answer_asks_for_nothing_more() -> None:
    worker = Worker()
    worker.handle.on_chunk(chunk(0))
    worker.handle.on_chunk(chunk(1, attempt=2))
    worker.handle.on_chunk(chunk(0, attempt=2, token=5))
    # a gap of another job is asked for twice: by then the first one's would have been asked for as well
    other = Worker()
    other.handle.on_chunk(chunk(1))
    for _ in range(2):
        await other.asked.wait()
        other.asked.clear()
    assert worker.gaps == []
    other.handle.on_end(result(2))


async def test_a_failure_comes_from_both_ends_after_what_was_read() -> None:
    handle = Worker().handle
    handle.on_chunk(chunk(0))
    handle.on_end(FAILURE)
    handle.on_end(result(1))
    assert (await anext(handle)).text == "a"
    for waiting in (anext(handle), handle.result(), handle.text()):
        with pytest.raises(JobFailed, match="too_long: prompt has 9 tokens, limit 8") as caught:
            await waiting
        assert caught.value.code is FailureCode.TOO_LONG
        assert caught.value.retryable is False


async def test_a_changed_answer_ends_the_stream_but_not_the_result() -> None:
    handle = Worker().handle
    handle.on_chunk(chunk(0))
    handle.on_chunk(chunk(0, attempt=2, token=5))
    assert (await anext(handle)).text == "a"
    with pytest.raises(AnswerChanged):
        await anext(handle)
    handle.on_end(result(2, attempt=2))
    assert (await handle.result()).text == "ab"
    with pytest.raises(AnswerChanged):
        await anext(handle)


async def test_a_second_reader_is_refused_and_the_first_goes_on() -> None:
    handle = Worker().handle
    reading = asyncio.create_task(text_of(handle))
    await asyncio.sleep(0)
    with pytest.raises(RuntimeError, match=f"job {JOB} is read by another task;"):
        await anext(handle)
    handle.on_end(result(2))
    assert await reading == "ab"


async def test_a_new_task_may_read_on_when_the_first_is_done() -> None:
    handle = Worker().handle
    handle.on_chunk(chunk(0))

    async def one() -> Chunk:
        return await anext(handle)

    assert (await asyncio.create_task(one())).text == "a"
    handle.on_end(result(2))
    assert (await asyncio.create_task(one())).text == "b"


async def test_several_tasks_may_wait_for_the_result() -> None:
    handle = Worker().handle
    waiting = [asyncio.create_task(handle.result()) for _ in range(3)]
    await asyncio.sleep(0)
    handle.on_end(result(1))
    assert [answer.text for answer in await asyncio.gather(*waiting)] == ["a", "a", "a"]


async def test_cancel_tells_the_queue_once_and_ends_the_handle() -> None:
    worker = Worker()
    await worker.handle.cancel()
    await worker.handle.cancel()
    assert worker.cancels == 1
    with pytest.raises(JobFailed) as caught:
        await worker.handle.result()
    assert caught.value.code is FailureCode.CANCELLED


async def test_cancel_after_the_end_does_nothing() -> None:
    worker = Worker()
    worker.handle.on_end(result(1))
    await worker.handle.cancel()
    assert worker.cancels == 0
    assert await worker.handle.text() == "a"


async def test_a_gap_is_asked_for_again_until_it_is_filled() -> None:
    worker = Worker()
    worker.handle.on_chunk(chunk(0))
    worker.handle.on_chunk(chunk(2))
    for times in (1, 2):
        await worker.asked.wait()
        worker.asked.clear()
        assert worker.gaps == [Gap("w1", 1, 1)] * times
    worker.handle.on_chunk(chunk(1))
    worker.handle.on_end(result(3))
    assert await text_of(worker.handle) == "abc"
    assert worker.gaps == [Gap("w1", 1, 1)] * 2


async def test_a_gap_that_closes_by_itself_asks_nobody() -> None:
    worker = Worker()
    worker.handle.on_chunk(chunk(1))
    worker.handle.on_chunk(chunk(0))
    # a second gap on another job is asked for: by then the first one's grace has passed as well
    other = Worker()
    other.handle.on_chunk(chunk(1))
    await other.asked.wait()
    assert worker.gaps == []
    other.handle.on_end(result(2))


async def test_a_closed_client_ends_the_handle() -> None:
    handle = Worker().handle
    handle.fail(NotConnected("the client was closed"))
    handle.on_chunk(chunk(0))
    with pytest.raises(NotConnected):
        await anext(handle)
    with pytest.raises(NotConnected):
        await handle.result()
