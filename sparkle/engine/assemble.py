"""From a checkpoint's directory and settings to an engine. Knows no process."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Protocol

import torch

from sparkle.clock import SteadyUnixClock
from sparkle.drafting.acceptance import Acceptance
from sparkle.drafting.combined import Combined
from sparkle.drafting.forced import Forced
from sparkle.drafting.lookup import PromptLookup
from sparkle.drafting.width import WidthControl
from sparkle.engine.buckets import MAX_ROWS, buckets_for, widths_for
from sparkle.engine.device import choose_device, find_gpu
from sparkle.engine.draft_choice import DraftChoice
from sparkle.engine.engine import Engine, EngineLimits, PassRunner
from sparkle.engine.loaded_cpu import LoadedCpu
from sparkle.engine.loaded_gpu import LoadedGpu
from sparkle.engine.memory_plan import MemoryPlan
from sparkle.engine.pass_costs import PassCosts
from sparkle.engine.sampler import Sampler
from sparkle.engine.scheduler import Scheduler
from sparkle.engine.settings import Device, EngineSettings, Sizes
from sparkle.engine.shape_masks import ShapeMasks
from sparkle.engine.shapes import Shapes
from sparkle.engine.stopwatch import Stopwatch
from sparkle.errors import CheckpointError, ConfigError, UnsupportedModel
from sparkle.kernels import ops
from sparkle.model.config import ModelConfig, read_config
from sparkle.text.endings import Endings
from sparkle.text.prompt import PromptBuilder
from sparkle.text.template import ChatTemplate
from sparkle.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembly:
    """An engine and what belongs to it."""

    engine: Engine
    tokenizer: Tokenizer
    prompts: PromptBuilder
    config: ModelConfig
    model: str
    """The model's name."""

    sizes: Sizes
    """What was really allocated."""

    context_tokens: int
    """Longest prompt and answer together."""

    plan: MemoryPlan
    phases_s: dict[str, float]
    """Seconds of each phase."""


class Loaded(Protocol):
    """A model in memory: `LoadedCpu` or `LoadedGpu`."""

    plan: MemoryPlan
    sizes: Sizes
    device: torch.device
    """Where its logits are."""

    skipped: int
    """Tensors of the checkpoint that nothing uses."""

    def runner(self, sampler: Sampler, *, max_pages: int) -> PassRunner:
        """What runs passes."""
        ...


Load = Callable[[Path, ModelConfig, EngineSettings, Stopwatch], Loaded]
"""Brings a checkpoint's model into memory."""


def assemble(directory: Path, settings: EngineSettings, *, load: Load | None = None) -> Assembly:
    """Load the checkpoint and put the engine together: in FP8 on an H200, in float32 on the CPU.

    `load`: in measurements, what stands in for the checkpoint's weights.

    Raises CheckpointError or one of its kinds for a directory that cannot be served, ConfigError where the
    device is not there or has too little memory.
    """
    watch = Stopwatch()
    torch.set_num_threads(settings.compute_threads())
    config = read_config(directory)
    # files that take the tokenizer as long as the weights take the GPU
    with ThreadPoolExecutor(1, thread_name_prefix="text") as beside:
        text = beside.submit(_load_text, directory, config)
        try:
            loaded = (load or _load)(directory, config, settings, watch)
        except CheckpointError:
            # of two things that are wrong the tokenizer is the cheaper one to mend
            text.result()
            raise
        tokenizer, prompts = text.result()
    _log_plan(config, loaded)
    watch.lap("text_s")
    sizes = loaded.sizes
    context_tokens = sizes.context_tokens(config.max_context_tokens)
    masks = ShapeMasks(
        rows=config.vocab_size,
        end_tokens=config.end_tokens,
        most_masks=sizes.slots * (1 + sizes.draft_tokens),
        threads=settings.mask_threads(),
        device=loaded.device,
    )
    sampler = Sampler(tokenizer.vocab_size, masks)
    runner = loaded.runner(sampler, max_pages=-(-context_tokens // sizes.page_tokens))
    watch.lap("graphs_s")
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
        context_tokens=context_tokens,
        vocab_size=tokenizer.vocab_size,
        end_tokens=config.end_tokens,
    )
    shapes = Shapes(
        rows=config.vocab_size,
        end_tokens=config.end_tokens,
        find_ending=Endings(tokenizer, rows=config.vocab_size).find,
    )
    return Assembly(
        engine=Engine(
            scheduler,
            runner,
            tokenizer,
            limits,
            _drafts(runner, sizes, shapes),
            shapes,
            time.perf_counter,
            SteadyUnixClock(),
        ),
        tokenizer=tokenizer,
        prompts=prompts,
        config=config,
        model=config.name,
        sizes=sizes,
        context_tokens=context_tokens,
        plan=loaded.plan,
        phases_s=watch.laps,
    )


def _drafts(runner: PassRunner, sizes: Sizes, shapes: Shapes) -> DraftChoice:
    """What a shape forces, copies and the runner's draft model, as wide as pays; none where the settings say
    none."""
    most = sizes.draft_tokens
    acceptance = Acceptance(most)
    guesses = runner.draft_model is not None
    every = buckets_for(min(sizes.slots, MAX_ROWS), widths_for(most), guesses=guesses)
    # what was timed is what there are graphs of
    buckets = tuple(runner.pass_ms) or every
    return DraftChoice(
        Combined({"forced": Forced(shapes.forced), "lookup": PromptLookup()} if most else {}),
        WidthControl(PassCosts(buckets, runner.pass_ms), acceptance),
        acceptance,
        draft_tokens=most,
        draft_model=runner.draft_model,
        count_allowed=shapes.count_allowed,
    )


def _load(directory: Path, config: ModelConfig, settings: EngineSettings, watch: Stopwatch) -> Loaded:
    gpu = None if settings.device is Device.CPU else find_gpu()
    device = choose_device(settings.device, gpu)
    sizes = settings.sizes(device)
    if device is Device.CPU:
        return LoadedCpu(directory, config, sizes, watch)
    assert gpu is not None, "it was chosen"
    if settings.kernel_cache is not None:
        keep_kernels(settings.kernel_cache)
    free_bytes, _ = torch.cuda.mem_get_info()
    return LoadedGpu(
        directory,
        config,
        sizes,
        watch,
        device=torch.device("cuda"),
        name=gpu.name,
        free_bytes=free_bytes,
    )


def keep_kernels(directory: Path) -> None:
    """Keep compiled kernels in `directory`. Raises ConfigError where it cannot be made."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        # a full one may be read-only: nothing is written where every kernel is found
        if not any(directory.iterdir()):
            with TemporaryFile(dir=directory):
                pass
    except OSError as error:
        raise ConfigError(f"kernel_cache {directory} cannot be made or written ({error.strerror})") from None
    ops.keep_compiled_kernels(directory)


def _load_text(directory: Path, config: ModelConfig) -> tuple[Tokenizer, PromptBuilder]:
    tokenizer = Tokenizer.load(directory)
    if tokenizer.vocab_size > config.vocab_size:
        raise UnsupportedModel(
            f"the tokenizer has {tokenizer.vocab_size} tokens but vocab_size is {config.vocab_size}"
        )
    return tokenizer, PromptBuilder(tokenizer, ChatTemplate.load(directory))


def _log_plan(config: ModelConfig, loaded: Loaded) -> None:
    plan = loaded.plan
    log.info(
        "memory_plan",
        extra={
            "model": config.name,
            "device": plan.device,
            "free_bytes": plan.free_bytes,
            "weights_bytes": plan.needs.weights_bytes,
            "workspace_bytes": plan.needs.workspace_bytes,
            "kv_bytes": plan.kv_bytes,
            "state_bytes": plan.state_bytes,
            "kv_tokens": plan.kv_tokens,
            "slots": plan.slots,
            "cached_slots": plan.cached_slots,
            "skipped_tensors": loaded.skipped,
        },
    )
