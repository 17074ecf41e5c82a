"""The FP8 cache: a wiped slot and wiped pages hold nothing of before, and nothing else is touched."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from sparkle.model.fp8_cache import Fp8Cache
from sparkle.model.shapes import shape_27b, shape_tiny

SLOTS, PAGES, PAGE_TOKENS = 3, 5, 16


@pytest.fixture
def cache() -> Fp8Cache:
    made = Fp8Cache(
        shape_tiny(),
        num_pages=PAGES,
        page_tokens=PAGE_TOKENS,
        num_slots=SLOTS,
        device=torch.device("cpu"),
    )
    for memory in made.memories:
        for field in dataclasses.fields(memory):
            getattr(memory, field.name).fill_(1.0)
    for part in (made.keys, made.values):
        part.view(torch.uint8).fill_(0x38)  # 1.0
    return made


def test_a_wiped_slot_is_that_of_no_tokens_in_every_layer(cache: Fp8Cache) -> None:
    cache.zero_slot(1)
    for memory in cache.memories:
        for field in dataclasses.fields(memory):
            part = getattr(memory, field.name).float()
            assert part[1].abs().max() == 0.0, field.name
            assert part[[0, 2]].min() == 1.0, field.name


def test_wiped_pages_are_zero_in_every_layer(cache: Fp8Cache) -> None:
    cache.zero_pages([0, 3])
    for part in (cache.keys.float(), cache.values.float()):
        assert part[:, [0, 3]].abs().max() == 0.0
        assert part[:, [1, 2, 4]].min() == 1.0


def test_sizes_are_those_of_the_published_model_per_token_and_slot() -> None:
    made = Fp8Cache(shape_27b(), num_pages=2, page_tokens=64, num_slots=1, device=torch.device("meta"))
    # a layer more for the draft head
    assert made.kv_bytes == 2 * 64 * (32_768 + 2048)
    plain = dataclasses.replace(shape_27b(), has_mtp=False)
    less = Fp8Cache(plain, num_pages=2, page_tokens=64, num_slots=1, device=torch.device("meta"))
    assert less.kv_bytes == 2 * 64 * 32_768
    assert less.state_bytes == made.state_bytes
    # states and columns as published, and the window of 16 tokens: inputs, keys, decays, writes
    window = 48 * 16 * (10240 * 2 + 48 * (128 * 2 + 4) + 48 * 128 * 4)
    assert made.state_bytes == 150_994_944 + 2_949_120 + window
