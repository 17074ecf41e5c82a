"""A conversation as long as the context: read in chunks, answered, asked on to its end, refused beyond.

Through the engine with the FP8 runner: a small one on the CPU, 262,144 tokens at the served widths on a GPU.
"""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path

import pytest
import torch

from sparkle.engine.frames import Failed
from sparkle.engine.loaded_gpu import LoadedGpu
from sparkle.engine.settings import Device, EngineSettings
from sparkle.engine.stopwatch import Stopwatch
from sparkle.errors import FailureCode
from sparkle.model.config import ModelConfig
from sparkle.model.fp8_loader import Fp8LoadReport
from sparkle.model.fp8_weights import Fp8DecoderWeights
from sparkle.model.random_weights import random_fp8_weights
from sparkle.model.shapes import shape_27b, shape_tiny
from sparkle.schemas.answer import FinishReason
from sparkle.schemas.job import Job
from sparkle.text.tokenizer import Tokenizer
from tests.engine.bundle import GREEDY, Bundle
from tests.engine.loaded import engine_of

ANSWER_TOKENS, FOLLOW_UP_TOKENS, LAST_TOKENS = 20, 100, 24


VOCAB_SIZE = 8320
"""Whole blocks, and more than the tokenizer has: the last token, which ends an answer, is never drawn."""


def four_layers(config: ModelConfig, *, context_tokens: int) -> ModelConfig:
    """Three of linear attention and one of full attention."""
    return dataclasses.replace(
        config,
        layer_types=config.layer_types[:4],
        vocab_size=VOCAB_SIZE,
        max_context_tokens=context_tokens,
        end_tokens=(VOCAB_SIZE - 1,),
        has_mtp=False,
    )


def random_engine(
    config: ModelConfig, tokenizer: Tokenizer, settings: EngineSettings, device: torch.device
) -> Bundle:
    def read_weights(
        _directory: Path, wanted: ModelConfig, place: torch.device
    ) -> tuple[Fp8DecoderWeights, Fp8LoadReport]:
        weights = random_fp8_weights(wanted, place, seed=4)
        return weights, Fp8LoadReport(quantised=0, skipped=(), read_bytes=0)

    loaded = LoadedGpu(
        Path(),
        config,
        settings.sizes(Device.CUDA),
        Stopwatch(),
        device=device,
        name="a GPU",
        free_bytes=60 * 10**9,
        read_weights=read_weights,
    )
    return engine_of(loaded, config, tokenizer)


def converse(built: Bundle, context_tokens: int) -> None:
    """A prompt, its answer, and a follow-up whose answer ends with the context."""
    order = random.Random(9)
    asked = context_tokens - LAST_TOKENS - FOLLOW_UP_TOKENS - ANSWER_TOKENS
    prompt = [order.randrange(5000) for _ in range(asked)]
    (first,) = built.run(Job(prompt_tokens=prompt, max_tokens=ANSWER_TOKENS, sampling=GREEDY))
    assert first.finished.finish_reason is FinishReason.LENGTH
    assert len(first.tokens) == ANSWER_TOKENS
    follow_up = [*prompt, *first.tokens, *(order.randrange(5000) for _ in range(FOLLOW_UP_TOKENS))]
    (second,) = built.run(Job(prompt_tokens=follow_up, max_tokens=1000, sampling=GREEDY))
    assert second.finished.finish_reason is FinishReason.LENGTH
    # nothing of it was read again: of the answer's last token nothing had been kept
    assert second.finished.cached_tokens == asked + ANSWER_TOKENS - 1
    assert len(follow_up) + len(second.tokens) == context_tokens
    refused = built.submit(Job(prompt_tokens=[1] * context_tokens, max_tokens=1))
    assert isinstance(refused, Failed)
    assert refused.code is FailureCode.TOO_LONG
    assert refused.message.count(str(context_tokens)) == 2
    assert not built.engine.has_work


def test_a_small_context(tokenizer: Tokenizer) -> None:
    config = four_layers(shape_tiny(), context_tokens=700)
    settings = EngineSettings(slots=2, pass_tokens=200, kv_tokens=1024)
    converse(random_engine(config, tokenizer, settings, torch.device("cpu")), 700)


@pytest.mark.gpu
def test_the_served_models_context(tokenizer: Tokenizer, gpu: torch.device) -> None:
    longest = shape_27b().max_context_tokens
    assert longest == 262_144
    config = four_layers(shape_27b(), context_tokens=longest)
    built = random_engine(config, tokenizer, EngineSettings(slots=2, kv_tokens=2 * longest), gpu)
    converse(built, longest)
