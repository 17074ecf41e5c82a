"""From the tokens of one answer, as they are drawn, to its frames. Knows neither scheduler nor model."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from sparkle.engine.call_pieces import joined
from sparkle.engine.draft_count import DraftCount
from sparkle.engine.frames import Delta, Finished
from sparkle.engine.plan import Drawn
from sparkle.schemas.answer import Channel, FinishReason
from sparkle.schemas.job import Job, Thinking
from sparkle.text.answer_calls import CallPiece
from sparkle.text.answer_text import AnswerText, TextPiece
from sparkle.text.shape import Shape
from sparkle.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class _Told:
    """A token and what became final with it."""

    channel: Channel
    drawn: Drawn
    pieces: Sequence[TextPiece | CallPiece]


class AnswerFrames:
    """One answer: every token is in one delta, and the deltas' texts join up to the answer's."""

    def __init__(
        self,
        job: Job,
        tokenizer: Tokenizer,
        *,
        prompt_tokens: int,
        stop_tokens: Collection[int],
        shape: Shape | None = None,
    ) -> None:
        """`shape`: what the answer is kept to, and how its calls are read."""
        self._job = job.id
        self._tokenizer = tokenizer
        self._wants_logprobs = job.sampling.logprobs is not None
        self._prompt_tokens = prompt_tokens
        self._stop_tokens = stop_tokens
        self._text = AnswerText(
            tokenizer,
            stop=job.sampling.stop,
            thinking=job.thinking is not Thinking.OFF,
            calls=None if shape is None else shape.calls,
        )
        self._exact = shape is not None and shape.exact
        self._num_tokens = 0
        self._cached_tokens: int | None = None
        self._drafts = DraftCount()
        # code points handed out of each channel's text
        self._written = dict.fromkeys(Channel, 0)

    @property
    def stopped(self) -> bool:
        """Whether the text holds a stop string: the answer ends with the token added last."""
        return self._text.stopped

    def cached(self, tokens: int) -> None:
        """So many of the prompt's tokens need not be read. What it goes on from later does not count."""
        if self._cached_tokens is None:
            # of an answer that goes on, the cache may hold a part as well
            self._cached_tokens = min(tokens, self._prompt_tokens)

    def drafted(self, sources: Sequence[str]) -> None:
        """The tokens added next come of a pass with a draft; `sources`: of each of it who guessed it."""
        self._drafts.checked(sources)

    def add(self, drawn: Sequence[Drawn], *, guessed: Sequence[bool]) -> list[Delta]:
        """The next tokens and what became final with them, a delta for each run of one channel.

        `guessed`: of each token whether the draft of this pass had it. A stop token adds no text. What stands
        behind a stop string is left out.
        """
        told: list[_Told] = []
        for one, was_guessed in zip(drawn, guessed, strict=True):
            if was_guessed:
                self._drafts.accepted_one()
            channel = self._text.channel
            pieces = [] if one.token in self._stop_tokens else self._text.push(one.token)
            told.append(_Told(channel, one, pieces))
            if self._text.stopped:
                break
        return [self._told(channel, list(run)) for channel, run in groupby(told, lambda one: one.channel)]

    def replay(self, tokens: Sequence[int]) -> list[Delta]:
        """The answer's first tokens, which an earlier attempt drew, as `add` told them then.

        What drew them, and how likely they were, is not known here.
        """
        drawn = [Drawn(request=self._job, token=token) for token in tokens]
        deltas = self.add(drawn, guessed=[False] * len(drawn))
        return [replace(delta, logprobs=None) for delta in deltas]

    def end(self, reason: FinishReason, *, ended: bool = False) -> list[Delta | Finished]:
        """What was held back of the text, and the end; `ended`: the answer is whole as its shape has it."""
        # what stands behind a stop string is in no text
        ended = ended and not self._text.stopped
        channel, rest = self._text.channel, self._text.finish()
        deltas = [self._delta([], rest, channel, None)] if rest else []
        if ended and self._text.called:
            reason = FinishReason.TOOL_CALLS
        finished = Finished(
            job=self._job,
            finish_reason=reason,
            prompt_tokens=self._prompt_tokens,
            cached_tokens=self._cached_tokens or 0,
            completion_tokens=self._num_tokens,
            enforced=ended and self._exact,
            drafts=self._drafts.by_source(),
        )
        return [*deltas, finished]

    def _told(self, channel: Channel, run: Sequence[_Told]) -> Delta:
        logprobs: list[list[Any]] | None = None
        if self._wants_logprobs:
            logprobs = [self._likely(one.drawn) for one in run]
        pieces = [piece for one in run for piece in one.pieces]
        return self._delta([one.drawn.token for one in run], pieces, channel, logprobs)

    def _likely(self, drawn: Drawn) -> list[Any]:
        """The frame's entry of one token."""
        top = [[token, logprob, *self._tokenizer.spelling(token)] for token, logprob in drawn.top]
        return [drawn.logprob, *self._tokenizer.spelling(drawn.token), top]

    def _delta(
        self,
        tokens: list[int],
        pieces: Sequence[TextPiece | CallPiece],
        channel: Channel,
        logprobs: list[list[Any]] | None,
    ) -> Delta:
        text = "".join(piece.text for piece in pieces if isinstance(piece, TextPiece))
        calls = [piece for piece in pieces if isinstance(piece, CallPiece)]
        first, start = self._num_tokens, self._written[channel]
        self._num_tokens += len(tokens)
        self._written[channel] += len(text)
        return Delta(
            job=self._job,
            first_index=first,
            tokens=tokens,
            text=text,
            text_start=start,
            channel=channel,
            logprobs=logprobs,
            calls=joined(
                [(piece.index, piece.name, piece.arguments, piece.arguments_start) for piece in calls]
            ),
        )
