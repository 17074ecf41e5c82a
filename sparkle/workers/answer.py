"""One job's answer while it grows: checks that deltas join up, ends as a Result. Knows no queue."""

from __future__ import annotations

from typing import Any

from sparkle.engine.frames import Delta, Finished
from sparkle.errors import EngineError
from sparkle.schemas.answer import Alternative, Channel, Chunk, Result, TokenLogprobs, Usage
from sparkle.schemas.answered import Answered
from sparkle.workers.calls import CallsSoFar


class AnswerSoFar:
    """What the engine has written for one job in one attempt."""

    def __init__(
        self, *, job: str, attempt: int, worker: str, logprobs: list[TokenLogprobs] | None = None
    ) -> None:
        """`logprobs`: of the tokens that earlier attempts wrote, whose deltas have none."""
        self._job = job
        self._attempt = attempt
        self._worker = worker
        self._tokens: list[int] = []
        self._texts: dict[Channel, list[str]] = {channel: [] for channel in Channel}
        self._text_chars = dict.fromkeys(Channel, 0)
        self._logprobs = None if logprobs is None else [*logprobs]
        self._calls = CallsSoFar(job)
        self.enforced = False
        """Whether the engine kept it to all that its shape says, to the end; known with the result."""
        self._next_seq = 0

    @property
    def num_tokens(self) -> int:
        """Tokens written."""
        return len(self._tokens)

    @property
    def call_is_cut(self) -> bool:
        """Whether the last call has begun and has not come to its end."""
        return self._calls.is_cut

    def record(self, strikes: int) -> Answered:
        """All of it, for the worker that goes on."""
        return Answered(
            job=self._job,
            attempt=self._attempt,
            tokens=self._tokens,
            logprobs=self._logprobs,
            strikes=strikes,
        )

    def add(self, delta: Delta) -> None:
        """Take the next delta. Raises EngineError if it does not go on where the last one ended."""
        chars = self._text_chars[delta.channel]
        if delta.first_index != len(self._tokens) or delta.text_start != chars:
            raise EngineError(
                f"delta starts at token {delta.first_index} and character {delta.text_start} "
                f"but {len(self._tokens)} tokens and {chars} characters were written"
            )
        self._calls.add(delta.calls)
        self._tokens += delta.tokens
        self._texts[delta.channel].append(delta.text)
        self._text_chars[delta.channel] += len(delta.text)
        if delta.logprobs is not None:
            self._logprobs = (self._logprobs or []) + _logprobs(delta.logprobs)

    def chunk(self, delta: Delta) -> Chunk:
        """The next chunk of this attempt, with `delta` (one or several merged ones) in it."""
        seq, self._next_seq = self._next_seq, self._next_seq + 1
        return Chunk(
            job=self._job,
            attempt=self._attempt,
            seq=seq,
            first_index=delta.first_index,
            tokens=delta.tokens,
            text=delta.text,
            text_start=delta.text_start,
            channel=delta.channel,
            worker=self._worker,
            tool_calls=self._calls.deltas(delta.calls),
            logprobs=self._logprobs_of(delta),
        )

    def result(self, finished: Finished, *, queue_s: float, first_token_s: float, total_s: float) -> Result:
        """The whole answer; the counts are the engine's, the times the caller's, in seconds."""
        self.enforced = finished.enforced
        return Result(
            job=self._job,
            attempt=self._attempt,
            worker=self._worker,
            text="".join(self._texts[Channel.ANSWER]),
            reasoning="".join(self._texts[Channel.REASONING]),
            tool_calls=self._calls.whole(),
            tokens=self._tokens,
            finish_reason=finished.finish_reason,
            usage=Usage(
                prompt_tokens=finished.prompt_tokens,
                cached_tokens=finished.cached_tokens,
                completion_tokens=finished.completion_tokens,
                drafted_tokens=finished.drafted_tokens,
                accepted_tokens=finished.accepted_tokens,
                queue_s=queue_s,
                first_token_s=first_token_s,
                total_s=total_s,
            ),
            logprobs=self._logprobs,
        )

    def _logprobs_of(self, delta: Delta) -> list[TokenLogprobs] | None:
        if self._logprobs is None or not delta.tokens:
            return None
        return self._logprobs[delta.first_index : delta.first_index + len(delta.tokens)]


def _logprobs(entries: list[list[Any]]) -> list[TokenLogprobs]:
    """The engine's plain lists as parts of a message: one entry a token."""
    return [
        TokenLogprobs(
            logprob=logprob,
            text=text,
            octets=octets,
            top=[
                Alternative(token=token, logprob=likely, text=written, octets=added)
                for token, likely, written, added in top
            ],
        )
        for logprob, text, octets, top in entries
    ]
