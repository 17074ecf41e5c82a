"""262,144 tokens in one conversation, at the served model's widths: read, answered, asked on."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from sparkle.model.config import ModelConfig
from sparkle.model.fp8_decoder import Fp8Decoder
from sparkle.model.random_weights import random_fp8_weights
from sparkle.model.shapes import shape_27b
from tests.model.fp8_driver import Fp8Driver, Running
from tests.model.test_fp8_decoder import rms
from tests.model.test_fp8_gpu import NOISE, drawn

pytestmark = pytest.mark.gpu

CONTEXT_TOKENS = 262_144
ANSWER_TOKENS, FOLLOW_UP_TOKENS = 16, 100
POOL_TOKENS = 2_200_000
"""A layer's keys have more than 2^31 elements, and pages are taken from all over them."""


@pytest.fixture(scope="module")
def cuda() -> torch.device:
    if not torch.cuda.is_available():
        pytest.skip("needs an H200")
    return torch.device("cuda")


@pytest.fixture(scope="module")
def few_layers() -> ModelConfig:
    """Three layers of linear attention and one of full attention, and fewer words."""
    config = shape_27b()
    assert config.max_context_tokens == CONTEXT_TOKENS
    return dataclasses.replace(
        config, layer_types=config.layer_types[:4], vocab_size=8192, end_tokens=(0,), has_mtp=False
    )


def read(driver: Fp8Driver, sequence: Running, tokens: list[int], chunk_tokens: int) -> None:
    """As the engine reads all chunks but a prompt's last: no logits are wanted."""
    for start in range(0, len(tokens), chunk_tokens):
        driver.read_rows((sequence, tokens[start : start + chunk_tokens]), rows=())


def test_wherever_chunks_end_the_last_tokens_come_out_the_same(
    few_layers: ModelConfig, cuda: torch.device
) -> None:
    decoder = Fp8Decoder(few_layers, random_fp8_weights(few_layers, cuda, seed=5))
    driver = Fp8Driver(decoder, few_layers, device=cuda, page_tokens=64, num_tokens=POOL_TOKENS, num_slots=3)
    assert driver.cache.keys[0].numel() > 1 << 31
    tokens = drawn(few_layers, CONTEXT_TOKENS)
    followed = CONTEXT_TOKENS - FOLLOW_UP_TOKENS
    prompt = followed - ANSWER_TOKENS

    asked = driver.start()
    read(driver, asked, tokens[:prompt], 8448)
    (answer,) = driver.verify((asked, tokens[prompt:followed]), width=16)
    (follow_up,) = driver.read((asked, tokens[followed:]))
    assert asked.computed == CONTEXT_TOKENS

    whole = driver.start()
    rest = 5000  # so that no chunk but the first ends where one of the others does
    read(driver, whole, tokens[:-rest], 7001)
    (last,) = driver.read((whole, tokens[-rest:]))

    wanted: Tensor = last[-(ANSWER_TOKENS + FOLLOW_UP_TOKENS) :]
    got = torch.cat((answer, follow_up))
    assert bool(wanted.isfinite().all())
    assert rms(got - wanted) / rms(wanted) < NOISE
