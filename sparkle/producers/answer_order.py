"""Puts an answer's chunks in order, across losses and attempts, nothing twice. Knows no queue and no clock.

What was handed out is a prefix of the answer for ever. Chunks of one run of the job are ordered by `seq`; a
newer run starts over, and of it only what lies behind the tokens and the text already handed out is new. As
far as the two overlap they must be equal, else they are different answers and AnswerChanged says so.
"""

from __future__ import annotations

from dataclasses import dataclass

from sparkle.errors import AnswerChanged
from sparkle.producers.calls_order import CallsChanged, CallsMissing, CallsOrder
from sparkle.schemas.answer import Channel, Chunk, Result, TokenLogprobs
from sparkle.schemas.answered import Answered

MAX_EARLY_CHUNKS = 4096
"""Chunks kept behind a gap; more are dropped, since a resend brings all that follow it."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Chunks that did not arrive: who wrote them, and from which place on to ask for them."""

    worker: str
    attempt: int
    from_seq: int


class AnswerOrder:
    """One answer as far as it is handed out, and the chunks that came too early."""

    def __init__(self) -> None:
        self._attempt = 0
        self._worker = ""
        self._replaced: set[str] = set()
        self._next_seq = 0
        self._early: dict[int, Chunk] = {}
        self._tokens: list[int] = []
        self._logprobs: list[TokenLogprobs] = []
        self._pieces: dict[Channel, list[str]] = {channel: [] for channel in Channel}
        self._lengths: dict[Channel, int] = dict.fromkeys(Channel, 0)
        self._calls = CallsOrder()
        self._hole = False

    @property
    def gap(self) -> Gap | None:
        """What is missing before the chunks that came too early; None without a gap."""
        if not self._early:
            return None
        return Gap(self._worker, self._attempt, self._next_seq)

    def answered(self, job: str, from_index: int) -> Answered:
        """What was handed out from this token on, for a worker that goes on behind it."""
        return Answered(
            job=job,
            attempt=self._attempt,
            tokens=self._tokens[from_index:],
            logprobs=self._logprobs[from_index:] or None,
        )

    def take(self, chunk: Chunk) -> list[Chunk]:
        """The new parts that this chunk makes ready, in order. Raises AnswerChanged."""
        self._follow(chunk)
        if chunk.attempt < self._attempt or chunk.worker != self._worker or chunk.seq < self._next_seq:
            return []
        if chunk.seq > self._next_seq and len(self._early) >= MAX_EARLY_CHUNKS:
            return []
        self._early[chunk.seq] = chunk
        ready: list[Chunk] = []
        while (following := self._early.pop(self._next_seq, None)) is not None:
            self._next_seq += 1
            ready.extend(self._new_part(following))
        return ready

    def finish(self, result: Result) -> list[Chunk]:
        """What of the whole answer was not handed out yet, as chunks. Raises AnswerChanged."""
        self._early.clear()
        texts = {Channel.REASONING: result.reasoning, Channel.ANSWER: result.text}
        first = len(self._tokens)
        if result.tokens[:first] != self._tokens or any(
            not text.startswith(self._text(channel)) for channel, text in texts.items()
        ):
            raise _changed(result.attempt)
        try:
            calls = self._calls.finish(result.tool_calls)
        except CallsChanged:
            raise _changed(result.attempt) from None
        rest = {channel: text[self._lengths[channel] :] for channel, text in texts.items()}
        tokens = result.tokens[first:]
        # the result does not say where its tokens change channel: all go with the last text that is missing
        carrier = (
            Channel.REASONING if rest[Channel.REASONING] and not rest[Channel.ANSWER] else Channel.ANSWER
        )
        tail: list[Chunk] = []
        for channel, text in rest.items():
            carried = tokens if channel is carrier else []
            called = calls if channel is Channel.ANSWER else []
            if text or carried or called:
                tail.append(
                    Chunk(
                        job=result.job,
                        attempt=result.attempt,
                        seq=self._next_seq + len(tail),
                        first_index=first,
                        tokens=carried,
                        text=text,
                        text_start=self._lengths[channel],
                        channel=channel,
                        worker=result.worker,
                        tool_calls=called,
                        logprobs=result.logprobs[first:] if result.logprobs and carried else None,
                    )
                )
        return tail

    def _follow(self, chunk: Chunk) -> None:
        """Start over when the chunk is of a newer run: a higher attempt, or the same one by another worker.

        A job that was lost and published again counts its attempts from 1 again, so two workers can write
        the same one; the first of them is dead, or will find its end refused.
        """
        if chunk.attempt > self._attempt:
            self._replaced.clear()
        elif chunk.attempt < self._attempt or chunk.worker == self._worker or chunk.worker in self._replaced:
            return
        else:
            self._replaced.add(self._worker)
        self._attempt, self._worker = chunk.attempt, chunk.worker
        self._next_seq, self._hole = 0, False
        self._early.clear()

    def _new_part(self, chunk: Chunk) -> list[Chunk]:
        """The chunk without what was handed out before: one chunk, or none."""
        old_tokens = len(self._tokens) - chunk.first_index
        old_chars = self._lengths[chunk.channel] - chunk.text_start
        # an attempt that starts behind what is known cannot be joined to it; the result brings the rest
        self._hole = self._hole or old_tokens < 0 or old_chars < 0
        if self._hole:
            return []
        known = self._tokens[chunk.first_index : chunk.first_index + len(chunk.tokens)]
        if chunk.tokens[: len(known)] != known or not self._agrees(chunk, old_chars):
            raise _changed(chunk.attempt)
        tokens, text = chunk.tokens[old_tokens:], chunk.text[old_chars:]
        try:
            calls = self._calls.take(chunk.tool_calls)
        except CallsChanged:
            raise _changed(chunk.attempt) from None
        except CallsMissing:
            self._hole = True
            return []
        if not tokens and not text and not calls:
            return []
        self._tokens.extend(tokens)
        self._logprobs.extend((chunk.logprobs or [])[old_tokens:])
        self._pieces[chunk.channel].append(text)
        self._lengths[chunk.channel] += len(text)
        if old_tokens == 0 and old_chars == 0 and calls == chunk.tool_calls:
            return [chunk]
        changes = {
            "first_index": chunk.first_index + old_tokens,
            "tokens": tokens,
            "text": text,
            "text_start": chunk.text_start + old_chars,
            "tool_calls": calls,
            "logprobs": chunk.logprobs and chunk.logprobs[old_tokens:],
        }
        return [chunk.model_copy(update=changes)]

    def _agrees(self, chunk: Chunk, old_chars: int) -> bool:
        """Whether the chunk's text is, as far as they overlap, the text handed out."""
        if old_chars == 0 or not chunk.text:
            return True
        known = self._text(chunk.channel)[chunk.text_start : chunk.text_start + len(chunk.text)]
        return chunk.text.startswith(known)

    def _text(self, channel: Channel) -> str:
        """The text of a channel as far as it is handed out."""
        pieces = self._pieces[channel]
        if len(pieces) > 1:
            pieces[:] = ["".join(pieces)]
        return pieces[0] if pieces else ""


def _changed(attempt: int) -> AnswerChanged:
    return AnswerChanged(
        f"attempt {attempt} wrote another answer than the one handed out so far; await the result instead"
    )
