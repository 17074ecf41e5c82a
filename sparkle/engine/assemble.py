"""From a checkpoint's directory and settings to an engine. Knows no process."""

from __future__ import annotations

import dataclasses
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from sparkle.engine.engine import Engine, EngineLimits
from sparkle.engine.runner import Runner
from sparkle.engine.sampler import Sampler
from sparkle.engine.scheduler import Scheduler
from sparkle.engine.settings import EngineSettings
from sparkle.errors import ConfigError, UnsupportedModel
from sparkle.model.cache import SequenceCache
from sparkle.model.config import ModelConfig, read_config
from sparkle.model.decoder import Decoder
from sparkle.model.weights import DecoderWeights, load_weights
from sparkle.text.prompt import PromptBuilder
from sparkle.text.template import ChatTemplate
from sparkle.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembly:
    """An engine and what belongs to it."""

    engine: Engine
    prompts: PromptBuilder
    model: str
    """The model's name."""

    context_tokens: int
    """Longest prompt and answer together."""


def assemble(directory: Path, settings: EngineSettings) -> Assembly:
    """Load the checkpoint and put the engine together, in float32 on the CPU.

    Raises CheckpointError or one of its kinds for a directory that cannot be served, ConfigError where the
    settings need more memory than there is.
    """
    torch.set_num_threads(settings.compute_threads())
    device, dtype = torch.device("cpu"), torch.float32
    config = read_config(directory)
    tokenizer = Tokenizer.load(directory)
    if tokenizer.vocab_size > config.vocab_size:
        raise UnsupportedModel(
            f"the tokenizer has {tokenizer.vocab_size} tokens but vocab_size is {config.vocab_size}"
        )
    prompts = PromptBuilder(tokenizer, ChatTemplate.load(directory))
    weights, report = load_weights(directory, config, device=device, dtype=dtype)
    cache = _cache(config, settings, device, dtype)
    _log_plan(config, weights, cache, skipped=len(report.skipped))
    return Assembly(
        engine=_engine(config, settings, tokenizer, Decoder(config, weights), cache),
        prompts=prompts,
        model=config.name,
        context_tokens=settings.context_tokens(config.max_context_tokens),
    )


def _cache(
    config: ModelConfig, settings: EngineSettings, device: torch.device, dtype: torch.dtype
) -> SequenceCache:
    try:
        return SequenceCache(
            config,
            num_pages=settings.num_pages,
            page_tokens=settings.page_tokens,
            num_slots=settings.slots,
            device=device,
            dtype=dtype,
        )
    # torch has no narrower one for memory that cannot be had
    except RuntimeError:
        raise ConfigError(
            f"no memory for kv_tokens {settings.kv_tokens} and slots {settings.slots}; lower one of them"
        ) from None


def _engine(
    config: ModelConfig,
    settings: EngineSettings,
    tokenizer: Tokenizer,
    decoder: Decoder,
    cache: SequenceCache,
) -> Engine:
    context_tokens = settings.context_tokens(config.max_context_tokens)
    scheduler = Scheduler(
        num_slots=settings.slots,
        num_pages=settings.num_pages,
        page_tokens=settings.page_tokens,
        pass_tokens=settings.pass_tokens,
    )
    runner = Runner(
        decoder,
        cache,
        Sampler(tokenizer.vocab_size),
        num_slots=settings.slots,
        max_pages=-(-context_tokens // settings.page_tokens),
    )
    limits = EngineLimits(
        context_tokens=context_tokens, vocab_size=tokenizer.vocab_size, end_tokens=config.end_tokens
    )
    return Engine(scheduler, runner, tokenizer, limits)


def _log_plan(config: ModelConfig, weights: DecoderWeights, cache: SequenceCache, *, skipped: int) -> None:
    log.info(
        "memory_plan",
        extra={
            "model": config.name,
            "weights_bytes": _bytes_of(weights),
            "kv_bytes": cache.keys.nbytes + cache.values.nbytes,
            "state_bytes": cache.states.nbytes + cache.columns.nbytes,
            "skipped_tensors": skipped,
        },
    )


def _bytes_of(weights: object) -> int:
    """Size of all tensors in nested dataclasses and tuples of them."""
    if isinstance(weights, Tensor):
        return weights.nbytes
    if isinstance(weights, tuple):
        return sum(_bytes_of(part) for part in cast("tuple[object, ...]", weights))
    if dataclasses.is_dataclass(weights):
        return sum(_bytes_of(getattr(weights, field.name)) for field in dataclasses.fields(weights))
    return 0
