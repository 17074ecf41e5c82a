"""FP8 engines around what was loaded, on any device."""

from __future__ import annotations

import torch

from sparkle.engine.loaded_gpu import LoadedGpu
from sparkle.engine.settings import Device, EngineSettings, default_model
from sparkle.engine.stopwatch import Stopwatch
from sparkle.model.config import ModelConfig, read_config
from sparkle.text.tokenizer import Tokenizer
from tests.engine.bundle import Bundle, engine_around, max_pages, sampler_for


def load(settings: EngineSettings, device: torch.device) -> tuple[Bundle, LoadedGpu]:
    """The bundled checkpoint's engine with these settings, and what it was made of."""
    config, tokenizer = read_config(default_model()), Tokenizer.load(default_model())
    made = LoadedGpu(
        default_model(),
        config,
        settings.sizes(Device.CUDA),
        Stopwatch(),
        device=device,
        name="a GPU",
        free_bytes=10**10,
    )
    return engine_of(made, config, tokenizer), made


def engine_of(made: LoadedGpu, config: ModelConfig, tokenizer: Tokenizer) -> Bundle:
    """An engine that runs its passes with what was made."""
    sampler = sampler_for(config, tokenizer, made.sizes, made.device)
    runner = made.runner(sampler, max_pages=max_pages(config, made.sizes))
    return engine_around(runner, config, tokenizer, made.sizes)
