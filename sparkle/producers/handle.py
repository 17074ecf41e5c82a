"""A submitted job as its caller sees it: an iterator of chunks, a result, a cancel. Knows no connection."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Self

from sparkle.errors import AnswerChanged, FailureCode, JobFailed, SparkleError
from sparkle.producers.answer_order import AnswerOrder, Gap
from sparkle.producers.calls_order import joined
from sparkle.schemas.answer import Chunk, Failure, Result
from sparkle.schemas.answered import Answered

GAP_GRACE_S = 0.1
"""Chunks come in order on one connection, so a gap this old is a loss and not a delay."""

GAP_WAIT_MAX_S = 5.0
"""The longest wait between two requests for the same chunks; the first is twice the grace."""

MERGED_TOKENS = 512
"""Chunks that nobody has read yet are merged up to this size, so that a slow reader costs little memory."""


class Handle:
    """The answer to one job. Iterate over it in one task for chunks as they come; await `result()` in any."""

    def __init__(
        self,
        job_id: str,
        *,
        ask_resend: Callable[[Gap], None],
        cancel: Callable[[], Awaitable[None]],
    ) -> None:
        """Made by `Client.submit`. `ask_resend` and `cancel` reach the job's worker."""
        self.job_id = job_id
        self._ask_resend = ask_resend
        self._cancel = cancel
        self._order = AnswerOrder()
        self._unread: deque[Chunk] = deque()
        self._news = asyncio.Event()
        self._ended = asyncio.Event()
        self._end: Result | SparkleError | None = None
        self._stream_error: SparkleError | None = None
        self._reader: asyncio.Task[object] | None = None
        self._gap_timer: asyncio.TimerHandle | None = None

    @property
    def done(self) -> bool:
        """Whether the end is in."""
        return self._ended.is_set()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Chunk:
        """The next part of the answer; no token and no character comes twice.

        Raises JobFailed, AnswerChanged (then `result()` still has the whole answer), NotConnected after the
        client was closed, and RuntimeError when a second task reads.
        """
        self._claim()
        while not self._unread:
            if self._stream_error is not None:
                raise self._stream_error
            if self.done:
                raise StopAsyncIteration
            self._news.clear()
            await self._news.wait()
        return self._unread.popleft()

    async def result(self) -> Result:
        """The whole answer. Raises JobFailed, or NotConnected after the client was closed."""
        await self._ended.wait()
        if isinstance(self._end, Result):
            return self._end
        assert self._end is not None, "an ended handle has an end"
        raise self._end

    async def text(self) -> str:
        """The whole answer's text, without what the model thought. Raises as `result()` does."""
        return (await self.result()).text

    async def cancel(self) -> None:
        """End the job wherever it is; from then on the handle raises JobFailed with code `cancelled`.

        Does nothing when the end is in. Raises QueueError when the queue could not be told.
        """
        if not self.done:
            await self._cancel()
            self.fail(JobFailed(FailureCode.CANCELLED, "cancelled by its producer", retryable=False))

    def answered(self, from_index: int) -> Answered:
        """What has come of the answer from this token on, for the worker that asks."""
        return self._order.answered(self.job_id, from_index)

    def on_chunk(self, chunk: Chunk) -> None:
        """Take a chunk from the queue."""
        if self.done or self._stream_error is not None:
            return
        try:
            ready = self._order.take(chunk)
        except AnswerChanged as error:
            self._stream_error = error
            self._news.set()
            # nothing more is handed out, so nothing is missing
            self._stop_gap_timer()
            return
        self._hand_out(ready)
        self._watch_gap()

    def on_end(self, end: Result | Failure) -> None:
        """Take the job's end from the queue; the first one counts."""
        if isinstance(end, Failure):
            self.fail(JobFailed(end.code, end.message, retryable=end.retryable))
        elif not self.done:
            if self._stream_error is None:
                try:
                    self._hand_out(self._order.finish(end))
                except AnswerChanged as error:
                    self._stream_error = error
            self._close(end)

    def fail(self, error: SparkleError) -> None:
        """End without an answer; what was handed out before can still be read."""
        if not self.done:
            self._stream_error = self._stream_error or error
            self._close(error)

    def _close(self, end: Result | SparkleError) -> None:
        self._end = end
        self._ended.set()
        self._news.set()
        self._stop_gap_timer()

    def _claim(self) -> None:
        """The first task that reads is the reader until it is done."""
        task = asyncio.current_task()
        if self._reader is not None and self._reader is not task and not self._reader.done():
            raise RuntimeError(
                f"job {self.job_id} is read by another task; one may iterate, the others await result()"
            )
        self._reader = task

    def _hand_out(self, chunks: list[Chunk]) -> None:
        for chunk in chunks:
            last = self._unread[-1] if self._unread else None
            if last is not None and _mergeable(last, chunk):
                self._unread[-1] = _merged(last, chunk)
            else:
                self._unread.append(chunk)
        if chunks:
            self._news.set()

    def _watch_gap(self) -> None:
        """Start to wait when a gap opens, stop when it closes."""
        if self._order.gap is None:
            self._stop_gap_timer()
        elif self._gap_timer is None:
            self._wait_for(self._order.gap, GAP_GRACE_S)

    def _wait_for(self, gap: Gap, wait_s: float) -> None:
        loop = asyncio.get_running_loop()
        self._gap_timer = loop.call_later(wait_s, self._gap_is_old, gap, wait_s)

    def _gap_is_old(self, waited_for: Gap, waited_s: float) -> None:
        gap = self._order.gap
        self._gap_timer = None
        if gap is None:
            return
        # another gap than the one waited for is a new one: it gets its own grace
        if gap == waited_for:
            self._ask_resend(gap)
            self._wait_for(gap, min(2 * waited_s, GAP_WAIT_MAX_S))
        else:
            self._wait_for(gap, GAP_GRACE_S)

    def _stop_gap_timer(self) -> None:
        if self._gap_timer is not None:
            self._gap_timer.cancel()
            self._gap_timer = None


def _mergeable(first: Chunk, second: Chunk) -> bool:
    return (
        first.channel is second.channel
        and first.attempt == second.attempt
        and len(first.tokens) + len(second.tokens) <= MERGED_TOKENS
    )


def _merged(first: Chunk, second: Chunk) -> Chunk:
    # a chunk of text alone has none, and must not take those of its neighbour away
    logprobs = [*(first.logprobs or []), *(second.logprobs or [])] or None
    changes = {
        "tokens": first.tokens + second.tokens,
        "text": first.text + second.text,
        "tool_calls": joined([*first.tool_calls, *second.tool_calls]),
        "logprobs": logprobs,
    }
    return first.model_copy(update=changes)
