"""What the DFlash2 helper takes of long chunks: the same ring as from short ones."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from sparkle.drafting.dflash_helper import Fp8DFlashHelper
from sparkle.model.dflash import DFlash
from sparkle.model.dflash_cache import DFlashCache
from sparkle.model.dflash_config import read_dflash_config
from sparkle.model.dflash_weights import load_dflash_weights
from sparkle.model.fp8_batch import PromptBatch
from sparkle.model.fp8_cache import Fp8Cache
from sparkle.model.fp8_decoder import Fp8Decoder
from sparkle.model.taps import Taps
from tests.engine.small_model import small_config
from tests.model.dflash_reference import DFlashReference, DFlashShape, target_of
from tests.model.driver import CPU

SHAPE = DFlashShape()
LENGTHS = (70, 5, 24, 41)
"""Of four prompts; the window is of 24 tokens."""


class Tapped(Fp8Decoder):
    """Puts out what a row's token and layer say, and no logits."""

    def __init__(self) -> None:
        pass

    def read(self, batch: PromptBatch, cache: Fp8Cache, taps: Taps | None = None) -> Tensor:
        assert taps is not None
        for layer in SHAPE.target_layer_ids:
            generator = torch.Generator().manual_seed(layer)
            table = torch.randn(SHAPE.vocab_size, SHAPE.hidden_size, generator=generator)
            taps.take(layer, table[batch.token_ids])
        return torch.empty(0)


def chunk(bounds: dict[int, tuple[int, int]]) -> tuple[PromptBatch, Tensor]:
    """Rows `start` to `stop` of some prompts, by slot, and how many tokens were read before."""
    lengths = [stop - start for start, stop in bounds.values()]
    positions = torch.cat([torch.arange(start, stop) for start, stop in bounds.values()])
    prompts = torch.cat([torch.full((length,), slot) for slot, length in zip(bounds, lengths, strict=True)])
    return PromptBatch(
        token_ids=(17 * prompts + 5 * positions) % SHAPE.vocab_size,
        positions=positions.expand(3, -1),
        cells=torch.zeros_like(positions),
        span_starts=torch.tensor([0, *lengths]).cumsum(0),
        slots=torch.tensor(list(bounds)),
        page_tables=torch.zeros(len(bounds), 1, dtype=torch.int32),
        logit_rows=torch.zeros(0, dtype=torch.int64),
        contexts=tuple(start for start, _ in bounds.values()),
        lengths=tuple(lengths),
    ), torch.tensor([start for start, _ in bounds.values()])


@pytest.fixture
def model(tmp_path: Path) -> tuple[DFlash, Path]:
    reference = DFlashReference(SHAPE)
    reference.save(tmp_path)
    config = read_dflash_config(tmp_path, target_of(SHAPE))
    weights = load_dflash_weights(tmp_path, config, CPU)
    return DFlash(config, weights, embedding=reference.embedding, lm_head=reference.lm_head), tmp_path


def test_chunks_longer_than_the_window_leave_the_ring_of_short_ones(model: tuple[DFlash, Path]) -> None:
    made, directory = model
    config = read_dflash_config(directory, target_of(SHAPE))
    cache = Fp8Cache(small_config(131, (1,)), num_pages=1, page_tokens=1, num_slots=1, device=CPU)
    rings: list[DFlashCache] = []
    for most in (1000, 33, 24, 7):
        ring = DFlashCache(config, num_slots=len(LENGTHS), device=CPU, dtype=torch.float32)
        helper = Fp8DFlashHelper(Tapped(), made, config, ring)
        for start in range(0, max(LENGTHS), most):
            bounds = {
                slot: (start, min(length, start + most))
                for slot, length in enumerate(LENGTHS)
                if start < length
            }
            batch, contexts = chunk(bounds)
            _, outputs = helper.read(batch, cache)
            lengths = torch.tensor(batch.lengths)
            assert len(outputs) == int(lengths.clamp(max=config.window).sum())
            helper.follow(batch, outputs, batch.token_ids, contexts=contexts, kept=lengths)
        rings.append(ring)
    for ring in rings[1:]:
        for slot in range(len(LENGTHS)):
            assert torch.allclose(ring.keys[:, slot], rings[0].keys[:, slot], atol=1e-5)
            assert torch.allclose(ring.values[:, slot], rings[0].values[:, slot], atol=1e-5)
    assert bool(rings[0].keys[:, 0, : config.window].any(dim=-1).all())
