"""Random weights of DFlash2: the sizes of loaded ones, equal for equal seeds, activations of order 1."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import torch

from sparkle.kernels import ops
from sparkle.model.dflash_cache import ContextBatch, DFlashCache
from sparkle.model.dflash_config import read_dflash_config
from sparkle.model.dflash_weights import load_fp8_dflash_weights
from sparkle.model.fp8_dflash import Fp8DFlash
from sparkle.model.fp8_weights import tensor_bytes
from sparkle.model.random_dflash import random_dflash_weights
from tests.model.dflash_reference import DFlashReference, DFlashShape, target_of
from tests.model.driver import CPU

SHAPE = DFlashShape(
    hidden_size=128, intermediate_size=256, head_dim=64, num_hidden_layers=2, conv_group_size=16
)


def test_they_have_the_sizes_of_loaded_ones_and_a_draft_can_be_had(tmp_path: Path) -> None:
    DFlashReference(SHAPE).save(tmp_path)
    config = read_dflash_config(tmp_path, target_of(SHAPE))
    weights = random_dflash_weights(config, CPU, 1)
    assert tensor_bytes(weights) == tensor_bytes(load_fp8_dflash_weights(tmp_path, config, CPU))
    generator = torch.Generator().manual_seed(4)
    embedding, head = torch.randn(2, config.vocab_size, config.hidden_size, generator=generator).bfloat16()
    model = Fp8DFlash(config, weights, embedding=embedding, lm_head=ops.quantise_blocks(head))
    cache = DFlashCache(config, num_slots=1, device=CPU, dtype=torch.bfloat16)
    numbers = torch.tensor([0])
    batch = ContextBatch(
        span_starts=torch.tensor([0, 9]), slots=numbers, contexts=numbers, kept=torch.tensor([9])
    )
    model.extend(torch.randn(9, config.taps_size, generator=generator), batch, cache)
    assert 0.3 < cache.values[:, 0, :9].float().square().mean() < 3
    draft = model.propose(numbers, numbers, torch.tensor([9]), cache, rows=16)
    assert len({int(token) for token in draft[0]}) > 1


def test_equal_seeds_give_equal_weights(tmp_path: Path) -> None:
    DFlashReference(SHAPE).save(tmp_path)
    config = read_dflash_config(tmp_path, target_of(SHAPE))
    first, again, other = (random_dflash_weights(config, CPU, seed).selector for seed in (1, 1, 2))
    for field in dataclasses.fields(first):
        assert torch.equal(getattr(first, field.name), getattr(again, field.name))
        assert not torch.equal(getattr(first, field.name), getattr(other, field.name))
