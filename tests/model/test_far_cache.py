"""A cache of the served model's sizes, beyond 2^31 elements: what is wiped at its end, and nothing else."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from sparkle.model.fp8_cache import Fp8Cache
from sparkle.model.shapes import shape_27b

pytestmark = pytest.mark.gpu

LIMIT = 1 << 31
PAGES, SLOTS = 2000, 64
ONE = 0x38


@pytest.fixture
def cache() -> Fp8Cache:
    """Full of ones."""
    if not torch.cuda.is_available():
        pytest.skip("needs an H200")
    made = Fp8Cache(
        shape_27b(), num_pages=PAGES, page_tokens=64, num_slots=SLOTS, device=torch.device("cuda")
    )
    for part in (made.keys, made.values):
        part.view(torch.uint8).fill_(ONE)
        assert part.numel() > LIMIT
    for memory in made.memories:
        for field in dataclasses.fields(memory):
            getattr(memory, field.name).fill_(1.0)
    assert sum(memory.states.numel() for memory in made.memories) > LIMIT
    return made


def test_the_last_slot_is_wiped_in_every_layer(cache: Fp8Cache) -> None:
    cache.zero_slot(SLOTS - 1)
    for memory in cache.memories:
        for field in dataclasses.fields(memory):
            part = getattr(memory, field.name)
            assert float(part[-1].abs().max()) == 0.0, field.name
            assert float(part[:-1].min()) == 1.0, field.name


def test_the_last_pages_are_wiped_in_every_layer(cache: Fp8Cache) -> None:
    cache.zero_pages([PAGES - 1, 0, PAGES - 3])
    kept = [page for page in range(PAGES) if page not in (0, PAGES - 1, PAGES - 3)]
    for part in (cache.keys, cache.values):
        for layer in part.view(torch.uint8):
            assert int(layer[[0, PAGES - 1, PAGES - 3]].max()) == 0
            assert int(layer[kept].min()) == ONE
