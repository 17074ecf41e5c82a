"""Engines for tests: the bundled tokenizer, a scripted or a small random model, and jobs for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from sparkle.drafting.acceptance import Acceptance
from sparkle.drafting.combined import Combined
from sparkle.drafting.forced import Forced
from sparkle.drafting.proposer import Proposer
from sparkle.engine.draft_choice import DraftChoice
from sparkle.engine.engine import Engine, EngineLimits, PassRunner
from sparkle.engine.frames import Accepted, Delta, Failed, Finished, Frame
from sparkle.engine.runner import Model, Runner
from sparkle.engine.sampler import Sampler
from sparkle.engine.scheduler import Scheduler
from sparkle.engine.settings import Device, EngineSettings, Sizes
from sparkle.engine.shape_masks import ShapeMasks
from sparkle.engine.shapes import Shapes
from sparkle.model.cache import SequenceCache
from sparkle.model.config import ModelConfig
from sparkle.schemas.answer import Channel
from sparkle.schemas.job import Job, Sampling
from sparkle.text.endings import Endings
from sparkle.text.shape import Shape
from sparkle.text.tokenizer import Tokenizer
from tests.engine.proposers import Widest
from tests.engine.small_model import config_for

CPU = torch.device("cpu")
GREEDY = Sampling(temperature=0.0)
SETTINGS = EngineSettings(slots=4, pass_tokens=32, page_tokens=8, kv_tokens=1024, threads=1)


@dataclass
class Bundle:
    """An engine with its parts within reach."""

    engine: Engine
    scheduler: Scheduler
    tokenizer: Tokenizer
    answers: dict[str, Answer] = field(default_factory=dict[str, "Answer"])
    held: SequenceCache | None = None

    @property
    def cache(self) -> SequenceCache:
        """The cache of a float32 model."""
        assert self.held is not None
        return self.held

    def submit(
        self,
        job: Job,
        prompt: Sequence[int] | None = None,
        *,
        answered: Sequence[int] = (),
        shape: Shape | None = None,
    ) -> Frame:
        """Submit a job whose prompt is given or is its `prompt_tokens`."""
        return self.engine.submit(job, prompt or job.prompt_tokens or [], answered, shape)

    def step(self) -> None:
        """One pass; its frames go to their answers, whose deltas must join up."""
        for frame in self.engine.step():
            assert isinstance(frame, Delta | Finished | Failed)
            self.answers.setdefault(frame.job, Answer()).add(frame)
        self.scheduler.check_integrity()

    def run(self, *jobs: Job, shapes: Mapping[str, Shape] | None = None) -> list[Answer]:
        """Submit all, run until nothing is left, and return their answers in order; `shapes` by job."""
        for job in jobs:
            assert isinstance(self.submit(job, shape=(shapes or {}).get(job.id)), Accepted)
        while self.engine.has_work:
            self.step()
        return [self.answers[job.id] for job in jobs]

    def run_but_cancel(self, jobs: Sequence[Job], *, after_passes: int) -> None:
        """Submit all and run until nothing is left; the first is cancelled after so many passes."""
        for job in jobs:
            self.submit(job)
        passes = 0
        while self.engine.has_work:
            if passes == after_passes:
                self.engine.cancel(jobs[0].id)
            self.step()
            passes += 1


@dataclass
class Answer:
    """What the frames of one job add up to."""

    tokens: list[int] = field(default_factory=list[int])
    texts: dict[Channel, str] = field(default_factory=lambda: dict.fromkeys(Channel, ""))
    deltas: list[Delta] = field(default_factory=list[Delta])
    end: Finished | Failed | None = None

    def add(self, frame: Delta | Finished | Failed) -> None:
        assert self.end is None, "a frame came after the end"
        if not isinstance(frame, Delta):
            self.end = frame
            return
        assert frame.first_index == len(self.tokens)
        assert frame.text_start == len(self.texts[frame.channel])
        self.tokens += frame.tokens
        self.texts[frame.channel] += frame.text
        self.deltas.append(frame)

    @property
    def text(self) -> str:
        return self.texts[Channel.ANSWER]

    @property
    def finished(self) -> Finished:
        assert isinstance(self.end, Finished)
        return self.end


def bundle(
    model: Model,
    tokenizer: Tokenizer,
    settings: EngineSettings = SETTINGS,
    proposer: Proposer | None = None,
    clock: Callable[[], float] = lambda: 0.0,
) -> Bundle:
    """An engine around `model`; by `clock`, its time began in 1970."""
    config = config_for(tokenizer)
    sizes = settings.sizes(Device.CPU)
    cache = SequenceCache(
        config,
        num_pages=sizes.num_pages,
        page_tokens=sizes.page_tokens,
        num_slots=sizes.state_slots,
        device=CPU,
        dtype=torch.float32,
    )
    runner = Runner(
        model,
        cache,
        sampler_for(config, tokenizer, sizes),
        max_pages=max_pages(config, sizes),
    )
    built = engine_around(runner, config, tokenizer, sizes, proposer, clock)
    built.held = cache
    return built


def engine_around(
    runner: PassRunner,
    config: ModelConfig,
    tokenizer: Tokenizer,
    sizes: Sizes,
    proposer: Proposer | None = None,
    clock: Callable[[], float] = lambda: 0.0,
) -> Bundle:
    """An engine that runs its passes with `runner`, with drafts by `proposer` as long as they are."""
    scheduler = Scheduler(
        num_slots=sizes.slots,
        num_pages=sizes.num_pages,
        page_tokens=sizes.page_tokens,
        pass_tokens=sizes.pass_tokens,
        chunk_tokens=sizes.chunk_tokens,
        cached_slots=sizes.cached_slots,
        cache_s=sizes.cache_s,
    )
    limits = EngineLimits(
        context_tokens=sizes.context_tokens(config.max_context_tokens),
        vocab_size=tokenizer.vocab_size,
        end_tokens=config.end_tokens,
    )
    shapes = Shapes(
        rows=config.vocab_size,
        end_tokens=config.end_tokens,
        find_ending=Endings(tokenizer, rows=config.vocab_size).find,
    )
    proposers: dict[str, Proposer] = {"forced": Forced(shapes.forced)}
    drafts = DraftChoice(
        Combined(proposers if proposer is None else {**proposers, "test": proposer}),
        Widest(),
        Acceptance(sizes.draft_tokens),
        draft_tokens=sizes.draft_tokens,
        draft_model=runner.draft_model,
        count_allowed=shapes.count_allowed,
    )
    engine = Engine(scheduler, runner, tokenizer, limits, drafts, shapes, clock, unix_clock=clock)
    return Bundle(engine, scheduler, tokenizer)


def sampler_for(
    config: ModelConfig, tokenizer: Tokenizer, sizes: Sizes, device: torch.device = CPU
) -> Sampler:
    """A sampler that can keep answers to shapes."""
    masks = ShapeMasks(
        rows=config.vocab_size,
        end_tokens=config.end_tokens,
        most_masks=sizes.slots * (1 + sizes.draft_tokens),
        threads=1,
        device=device,
    )
    return Sampler(tokenizer.vocab_size, masks)


def max_pages(config: ModelConfig, sizes: Sizes) -> int:
    """The most pages that one request holds."""
    return -(-sizes.context_tokens(config.max_context_tokens) // sizes.page_tokens)
