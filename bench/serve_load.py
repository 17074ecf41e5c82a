"""Jobs put to an engine as they arrive, and when each of their tokens came. Knows no figure.

An open load: a job comes at its moment, whatever became of those before it, and what it waits counts from
there on.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from typing import Protocol

from sparkle.engine.engine import Engine
from sparkle.engine.frames import Delta, Failed, Finished, Frame
from sparkle.schemas.job import Job, Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A job, and when it comes."""

    at_s: float
    """Seconds since the load began."""

    job: Job
    """With `prompt_tokens`."""


@dataclass(slots=True)
class Answered:
    """When the tokens of one answer came, in seconds since its job did, and what its engine told of it."""

    tokens: list[int] = field(default_factory=list[int])
    times_s: list[float] = field(default_factory=list[float])
    """Of each token."""

    cached_tokens: int = 0
    """Of the prompt, those that were not read again."""

    @property
    def first_s(self) -> float:
        """Until the first token."""
        return self.times_s[0]

    @property
    def last_s(self) -> float:
        """Until the last one."""
        return self.times_s[-1]

    @property
    def longest_gap_s(self) -> float:
        """Between two tokens behind one another."""
        return max((later - earlier for earlier, later in pairwise(self.times_s)), default=0.0)

    def add(self, tokens: Sequence[int], at_s: float) -> None:
        """More tokens came."""
        self.tokens += tokens
        self.times_s += [at_s] * len(tokens)


class Server(Protocol):
    """What answers jobs: an engine in this process, or a worker behind the queue."""

    def answer(self, load: Sequence[Asked]) -> list[Answered]:
        """All of them, in the load's order. Raises RuntimeError where one is not answered."""
        ...


class EngineServer:
    """The engine's own loop, without the process around it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def answer(self, load: Sequence[Asked]) -> list[Answered]:
        """See Server. Whoever comes during a pass is taken behind it."""
        answers = {asked.job.id: Answered() for asked in load}
        came_s = {asked.job.id: asked.at_s for asked in load}
        waiting = sorted(load, key=lambda asked: asked.at_s, reverse=True)
        began_s = time.perf_counter()
        while waiting or self._engine.has_work:
            while waiting and waiting[-1].at_s <= time.perf_counter() - began_s:
                job = waiting.pop().job
                require_good(self._engine.submit(job, job.prompt_tokens or []))
            if not self._engine.has_work:
                time.sleep(max(0.0, waiting[-1].at_s - (time.perf_counter() - began_s)))
                continue
            frames = self._engine.step()
            now_s = time.perf_counter() - began_s
            for frame in frames:
                take(answers, frame, now_s, came_s)
        return [answers[asked.job.id] for asked in load]


def take(answers: Mapping[str, Answered], frame: Frame, now_s: float, came_s: Mapping[str, float]) -> None:
    """What one frame tells."""
    require_good(frame)
    match frame:
        case Delta():
            answers[frame.job].add(frame.tokens, now_s - came_s[frame.job])
        case Finished():
            answers[frame.job].cached_tokens = frame.cached_tokens
        case _:
            pass


def require_good(frame: Frame) -> None:
    """Raises RuntimeError for a job that failed."""
    if isinstance(frame, Failed):
        raise RuntimeError(f"job {frame.job} failed: {frame.code}: {frame.message}")


class Prompts:
    """Prompts of random tokens, of which no two begin alike."""

    def __init__(self, vocab_size: int, *, seed: int) -> None:
        self._vocab_size = vocab_size
        self._order = Random(seed)

    def tokens(self, count: int) -> list[int]:
        """The next one."""
        return [self._order.randrange(self._vocab_size) for _ in range(count)]

    def job(self, prompt_tokens: int, answer_tokens: int) -> Job:
        """The next one as a job, whose answer has so many tokens where no end token is drawn."""
        prompt = self.tokens(prompt_tokens)
        return job_of(prompt, answer_tokens, seed=self._order.randrange(2**32))


def job_of(prompt: Sequence[int], answer_tokens: int, *, seed: int | None = None) -> Job:
    """A job with this prompt, drawn as the defaults say; without a seed, with one of its own."""
    return Job(prompt_tokens=list(prompt), max_tokens=answer_tokens, sampling=Sampling(seed=seed))
