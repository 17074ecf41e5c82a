"""The step loop's body: jobs in, passes, frames out. Knows no process, no queue; its clock is given to it."""

from __future__ import annotations

import logging
import math
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol

import torch

from sparkle.engine.answer_frames import AnswerFrames
from sparkle.engine.buckets import Bucket
from sparkle.engine.draft_choice import DraftChoice
from sparkle.engine.draw_state import DrawState
from sparkle.engine.frames import Accepted, Cached, Failed, Frame
from sparkle.engine.full_passes import FullPasses
from sparkle.engine.plan import PassPlan, PassResult
from sparkle.engine.request import Request
from sparkle.engine.scheduler import Scheduler, Written
from sparkle.engine.shapes import Shapes
from sparkle.errors import FailureCode, GrammarError
from sparkle.quiet.failures import kind_of, place_of
from sparkle.schemas.answer import FinishReason
from sparkle.schemas.job import Job
from sparkle.schemas.priority import ServiceRates, classify
from sparkle.schemas.room import no_room
from sparkle.text.shape import Shape
from sparkle.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)

FORGET_AFTER_S = 1.0
"""Without a pass: what passes left is overwritten then, and the first of a conversation's next ones, which
often come sooner, does not wait for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLimits:
    """What a job is measured by."""

    context_tokens: int
    """Longest prompt and answer together."""

    vocab_size: int
    """Tokens that exist."""

    end_tokens: tuple[int, ...]
    """The model's own tokens that end an answer."""


class PassRunner(Protocol):
    """What runs passes: `runner.Runner` in float32 on the CPU, `gpu_runner.GpuRunner` in FP8 on a GPU."""

    @property
    def device(self) -> torch.device:
        """Where the logits are."""
        ...

    @property
    def draft_model(self) -> str | None:
        """What guesses during a pass, as metrics call it; None where nothing does."""
        ...

    @property
    def pass_ms(self) -> Mapping[Bucket, float]:
        """What a pass of each bucket took when the graphs were made; empty where that was not measured."""
        ...

    def run(self, plan: PassPlan, states: Mapping[str, DrawState]) -> PassResult:
        """Read every span's tokens and draw where the plan says so; `states` has those that draw."""
        ...

    def forget(self) -> None:
        """Overwrite what passes left besides slots and pages: inputs, results, masks. No pass is running."""
        ...


class Engine:
    """Owns the scheduler, the runner, the drafts and the text of every answer. Not for several threads."""

    def __init__(
        self,
        scheduler: Scheduler,
        runner: PassRunner,
        tokenizer: Tokenizer,
        limits: EngineLimits,
        drafts: DraftChoice,
        shapes: Shapes,
        clock: Callable[[], float],
        unix_clock: Callable[[], float],
    ) -> None:
        """`shapes`: those that `drafts` asks; `clock`: seconds from anywhere, to time passes and waits by;
        `unix_clock`: that of deadlines.
        """
        self._scheduler = scheduler
        self._runner = runner
        self._tokenizer = tokenizer
        self._limits = limits
        self._drafts = drafts
        self._shapes = shapes
        self._clock = clock
        self._unix_clock = unix_clock
        self._full_passes = FullPasses(scheduler.pass_tokens)
        self._rates = ServiceRates()
        self._answers: dict[str, AnswerFrames] = {}
        self._states: dict[str, DrawState] = {}
        # of jobs that go on: what was written before, to be told with the next step
        self._replayed: dict[str, list[Frame]] = {}
        # when what passes left is to be overwritten, if no request comes
        self._forget_s = math.inf

    @property
    def has_work(self) -> bool:
        """Whether `step` has anything to do."""
        return self.idle_s() == 0

    def idle_s(self) -> float:
        """Seconds until `step` has anything to do, if nothing comes: infinite where nothing is kept."""
        next_s = min(self._scheduler.next_pass_s, self._forget_s)
        return 0.0 if self._replayed else max(0.0, next_s - self._clock())

    def submit(
        self, job: Job, prompt: Sequence[int], answered: Sequence[int] = (), shape: Shape | None = None
    ) -> Frame:
        """Take a job with its prompt's tokens: Accepted, or Failed and forgotten.

        `answered`: the answer's first tokens, from an earlier attempt. They are told as they were then, and
        it goes on behind them. It is kept to `shape`. A job that is already here starts again.
        """
        self.cancel(job.id)
        too_long = no_room(len(prompt), self._limits.context_tokens)
        if too_long is not None:
            return _failed(job.id, FailureCode.TOO_LONG, too_long)
        if not prompt:
            return _failed(job.id, FailureCode.INVALID_JOB, "the prompt has no tokens; write something")
        for name, tokens in (("prompt_tokens", prompt), ("answered", answered)):
            if max(tokens, default=0) >= self._limits.vocab_size:
                return _failed(
                    job.id,
                    FailureCode.INVALID_JOB,
                    f"{name}: every id must be below {self._limits.vocab_size}, the vocabulary's size",
                )
        left = self._limits.context_tokens - len(prompt)
        try:
            self._start(job, tuple(prompt), answered, min(job.max_tokens, left), shape)
        except GrammarError as error:
            self._shapes.end(job.id)
            return _unshaped(job.id, error)
        return Accepted(job=job.id, prompt_tokens=len(prompt))

    def cancel(self, job_id: str) -> None:
        """End a job without an answer. Nothing happens where it is not here."""
        self._scheduler.cancel(job_id)
        self._replayed.pop(job_id, None)
        self._forget(job_id)

    @property
    def cached(self) -> Cached:
        """What is kept of jobs that ended or gave way."""
        holdings = self._scheduler.holdings
        return Cached(
            checkpoints=len(holdings.checkpoints.all),
            evicted=holdings.evicted,
            preempted=self._scheduler.preempted,
        )

    def end_conversation(self, tenant: str | None, conversation: str) -> None:
        """Forget what is kept of a tenant's conversation, and keep nothing of its running jobs."""
        self._scheduler.end_conversation(tenant, conversation)

    def step(self) -> list[Frame]:
        """One pass, and what came of it; nothing where there is no work."""
        now_s = self._clock()
        frames = [frame for told in self._replayed.values() for frame in told]
        self._replayed.clear()
        frames += self._end_late(now_s)
        if now_s >= self._forget_s and not self._scheduler.has_work:
            self._runner.forget()
            self._forget_s = math.inf
        if not self.has_work:
            return frames
        plan = self._scheduler.schedule(now_s, self._drafts.choose)
        for span in plan.spans:
            if span.fresh:
                self._answers[span.request].cached(span.start)
        started_s = self._clock()
        result = self._runner.run(plan, self._states)
        ended_s = self._clock()
        took_s = ended_s - started_s
        if plan.spans:
            self._forget_s = ended_s + FORGET_AFTER_S
        self._full_passes.passed(plan, took_s)
        for job_id, sources in self._drafts.sources(plan).items():
            self._answers[job_id].drafted(sources)
        for job_id in result.broken:
            self._scheduler.fail(job_id)
            self._forget(job_id)
            log.error("logits_not_finite", extra={"job": job_id})
            reason = "the model's output is not finite"
            # another worker's hardware may do better; deliveries are counted
            frames.append(_failed(job_id, FailureCode.ENGINE_ERROR, reason, retryable=True))
        written = self._scheduler.apply(result)
        self._drafts.passed(plan, written, 1000 * took_s)
        for job_id, of_one in groupby(written, lambda one: one.drawn.request):
            frames += self._answer(job_id, list(of_one))
        return frames

    def _end_late(self, now_s: float) -> list[Frame]:
        """End the jobs whose answer cannot be complete before their deadline: the rest goes faster."""
        reason = "the answer cannot be complete before the deadline; give the job more time"
        frames: list[Frame] = []
        for job_id in self._scheduler.late(now_s, self._full_passes.shortest_s):
            self.cancel(job_id)
            frames.append(_failed(job_id, FailureCode.DEADLINE_EXCEEDED, reason))
        return frames

    def _start(
        self,
        job: Job,
        prompt: tuple[int, ...],
        answered: Sequence[int],
        max_answer_tokens: int,
        shape: Shape | None,
    ) -> None:
        kept_to = None
        if shape is not None:
            kept_to = self._shapes.start(job.id, shape, max_tokens=max_answer_tokens)
            kept_to.accept(answered)
        ends = () if job.sampling.ignore_eos else self._limits.end_tokens
        stop_tokens = frozenset({*ends, *job.sampling.stop_tokens})
        answer = AnswerFrames(
            job, self._tokenizer, prompt_tokens=len(prompt), stop_tokens=stop_tokens, shape=shape
        )
        if answered:
            told = self._replayed[job.id] = [*answer.replay(answered)]
            reason = _reason(answered, stop_tokens, max_answer_tokens, stopped=answer.stopped)
            if reason is not None:
                # all of it was written before, but for its end
                told += answer.end(reason, ended=self._shapes.is_complete(job.id))
                self._shapes.end(job.id)
                return
        self._scheduler.add(
            Request(
                id=job.id,
                prompt=prompt,
                answer=[*answered],
                max_answer_tokens=max_answer_tokens,
                stop_tokens=stop_tokens,
                priority=classify(len(prompt), max_answer_tokens, self._rates),
                arrived_s=self._clock(),
                deadline_s=self._deadline_s(job),
                tenant=job.tenant,
                conversation=job.conversation,
            )
        )
        self._answers[job.id] = answer
        state = self._states[job.id] = DrawState(
            job.id,
            job.sampling,
            seed_of(job),
            prompt,
            self._limits.vocab_size,
            self._runner.device,
            stop_tokens,
            kept_to,
        )
        state.replay(answered)
        self._drafts.start(job.id, prompt)
        self._drafts.add(job.id, answered)

    def _deadline_s(self, job: Job) -> float:
        if job.deadline_ms is None:
            return math.inf
        return self._clock() + job.deadline_ms / 1000 - self._unix_clock()

    def _answer(self, job_id: str, written: Sequence[Written]) -> list[Frame]:
        """What came of one request in one pass."""
        frames: list[Frame] = []
        try:
            self._shapes.accept(job_id, [one.drawn.token for one in written])
            frames += self._frames(job_id, written)
            if job_id in self._answers:
                self._drafts.add(job_id, [one.drawn.token for one in written])
        except GrammarError as error:
            log.error("shape_lost", extra={"job": job_id, "error": kind_of(error)})
            self.cancel(job_id)
            frames.append(_unshaped(job_id, error))
        # one job's text must not end the others' answers; what it was is told without its content
        except Exception as error:  # noqa: BLE001
            log.error(
                "answer_failed", extra={"job": job_id, "error": kind_of(error), "place": place_of(error)}
            )
            self.cancel(job_id)
            reason = f"the engine failed on this answer ({type(error).__name__})"
            frames.append(_failed(job_id, FailureCode.ENGINE_ERROR, reason))
        return frames

    def _frames(self, job_id: str, written: Sequence[Written]) -> list[Frame]:
        answer = self._answers[job_id]
        drawn, guessed = [one.drawn for one in written], [one.guessed for one in written]
        frames: list[Frame] = [*answer.add(drawn, guessed=guessed)]
        finish = written[-1].finish
        if answer.stopped:
            self._scheduler.finish(job_id, FinishReason.STOP)
            # a stop string that is complete with the last token allowed is still the reason
            finish = FinishReason.STOP
        if finish is not None:
            frames += answer.end(finish, ended=self._shapes.is_complete(job_id))
            self._forget(job_id)
        return frames

    def _forget(self, job_id: str) -> None:
        if self._answers.pop(job_id, None) is not None:
            self._drafts.end(job_id)
        if (state := self._states.pop(job_id, None)) is not None:
            state.wipe()
        self._shapes.end(job_id)


def seed_of(job: Job) -> int:
    """The seed of a job's draws: as given, else the low 63 bits of its id, the same on every delivery."""
    if job.sampling.seed is not None:
        return job.sampling.seed
    return uuid.UUID(job.id).int & 2**63 - 1


def _reason(
    answered: Sequence[int], stop_tokens: frozenset[int], max_answer_tokens: int, *, stopped: bool
) -> FinishReason | None:
    """Why an answer that was written before is complete, if it is."""
    if stopped or answered[-1] in stop_tokens:
        return FinishReason.STOP
    return FinishReason.LENGTH if len(answered) >= max_answer_tokens else None


def _unshaped(job_id: str, error: GrammarError) -> Failed:
    """The end of an answer that cannot be kept to its shape any more."""
    return _failed(job_id, error.code, str(error))


def _failed(job_id: str, code: FailureCode, message: str, *, retryable: bool = False) -> Failed:
    return Failed(job=job_id, code=code, message=message, retryable=retryable)
