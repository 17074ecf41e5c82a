"""From the tokens of one answer, as they are drawn, to its frames. Knows neither scheduler nor model."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import groupby
from operator import itemgetter
from typing import Any

from sparkle.engine.draft_count import DraftCount
from sparkle.engine.frames import Delta, Finished
from sparkle.engine.plan import Drawn
from sparkle.schemas.answer import Channel, FinishReason
from sparkle.schemas.job import Job, Thinking
from sparkle.text.answer_text import AnswerText, TextPiece
from sparkle.text.tokenizer import Tokenizer


class AnswerFrames:
    """One answer: every token is in one delta, and the deltas' texts join up to the answer's."""

    def __init__(
        self, job: Job, tokenizer: Tokenizer, *, prompt_tokens: int, stop_tokens: Collection[int]
    ) -> None:
        self._job = job.id
        self._wants_logprobs = job.sampling.logprobs is not None
        self._prompt_tokens = prompt_tokens
        self._stop_tokens = stop_tokens
        self._text = AnswerText(tokenizer, stop=job.sampling.stop, thinking=job.thinking is not Thinking.OFF)
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
        """The next tokens and the text that became final with them, a delta for each run of one channel.

        `guessed`: of each token whether the draft of this pass had it. A stop token adds no text. What stands
        behind a stop string is left out.
        """
        told: list[tuple[Channel, Drawn, str]] = []
        for one, was_guessed in zip(drawn, guessed, strict=True):
            if was_guessed:
                self._drafts.accepted_one()
            channel = self._text.channel
            pieces = [] if one.token in self._stop_tokens else self._text.push(one.token)
            told.append((channel, one, "".join(piece.text for piece in pieces)))
            if self._text.stopped:
                break
        return [self._told(channel, list(run)) for channel, run in groupby(told, itemgetter(0))]

    def replay(self, tokens: Sequence[int]) -> list[Delta]:
        """The answer's first tokens, which an earlier attempt drew, as `add` told them then.

        What drew them, and how likely they were, is not known here.
        """
        drawn = [Drawn(request=self._job, token=token) for token in tokens]
        deltas = self.add(drawn, guessed=[False] * len(drawn))
        return [replace(delta, logprobs=None) for delta in deltas]

    def end(self, reason: FinishReason) -> list[Delta | Finished]:
        """What was held back of the text, and the end."""
        rest: list[TextPiece] = self._text.finish()
        deltas = [self._delta([], piece.text, piece.channel, None) for piece in rest]
        finished = Finished(
            job=self._job,
            finish_reason=reason,
            prompt_tokens=self._prompt_tokens,
            cached_tokens=self._cached_tokens or 0,
            completion_tokens=self._num_tokens,
            drafts=self._drafts.by_source(),
        )
        return [*deltas, finished]

    def _told(self, channel: Channel, run: Sequence[tuple[Channel, Drawn, str]]) -> Delta:
        logprobs: list[list[Any]] | None = None
        if self._wants_logprobs:
            logprobs = [[one.logprob, [list(pair) for pair in one.top]] for _, one, _ in run]
        return self._delta(
            [one.token for _, one, _ in run], "".join(text for _, _, text in run), channel, logprobs
        )

    def _delta(
        self, tokens: list[int], text: str, channel: Channel, logprobs: list[list[Any]] | None
    ) -> Delta:
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
        )
