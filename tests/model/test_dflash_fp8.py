"""The FP8 form of the DFlash2 model beside the float32 one: the same model but for its rounding."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from sparkle.kernels import ops
from sparkle.model.dflash import DFlash
from sparkle.model.dflash_cache import ContextBatch, DFlashCache
from sparkle.model.dflash_config import DFlashConfig, read_dflash_config
from sparkle.model.dflash_weights import load_dflash_weights, load_fp8_dflash_weights
from sparkle.model.fp8_dflash import Fp8DFlash
from tests.model.dflash_reference import DFlashReference, DFlashShape, target_of
from tests.model.driver import CPU

SHAPE = DFlashShape(
    hidden_size=256,
    intermediate_size=512,
    head_dim=64,
    num_hidden_layers=3,
    conv_group_size=16,
    selector_rank=16,
    sliding_window=40,
)
SEQUENCES, CONTEXT = 48, 60


@dataclass(frozen=True, slots=True)
class Pair:
    """Both forms after the same contexts."""

    config: DFlashConfig
    exact: tuple[DFlash, DFlashCache]
    fp8: tuple[Fp8DFlash, DFlashCache]

    def drafts(self, rows: int) -> tuple[Tensor, Tensor]:
        anchors = torch.arange(SEQUENCES)
        exact, fp8 = (
            model.propose(anchors, anchors, torch.full_like(anchors, CONTEXT), cache, rows=rows)
            for model, cache in (self.exact, self.fp8)
        )
        return exact, fp8


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    directory = tmp_path_factory.mktemp("dflash")
    reference = DFlashReference(SHAPE)
    reference.save(directory)
    config = read_dflash_config(directory, target_of(SHAPE))
    exact = DFlash(
        config,
        load_dflash_weights(directory, config, CPU),
        embedding=reference.embedding,
        lm_head=reference.lm_head,
    )
    fp8 = Fp8DFlash(
        config,
        load_fp8_dflash_weights(directory, config, CPU),
        embedding=reference.embedding.bfloat16(),
        lm_head=ops.quantise_blocks(reference.lm_head),
    )
    outputs = torch.randn(SEQUENCES * CONTEXT, config.taps_size, generator=torch.Generator().manual_seed(3))
    batch = ContextBatch(
        span_starts=torch.arange(SEQUENCES + 1) * CONTEXT,
        slots=torch.arange(SEQUENCES),
        contexts=torch.zeros(SEQUENCES, dtype=torch.int64),
        kept=torch.full((SEQUENCES,), CONTEXT),
    )
    caches = (
        DFlashCache(config, num_slots=SEQUENCES, device=CPU, dtype=dtype)
        for dtype in (torch.float32, torch.bfloat16)
    )
    pair = Pair(config, (exact, next(caches)), (fp8, next(caches)))
    for model, cache in (pair.exact, pair.fp8):
        # the decoder in FP8 gives bfloat16
        model.extend(outputs.bfloat16(), batch, cache)
    return pair


def test_its_context_is_that_of_the_float32_form(pair: Pair) -> None:
    for got, wanted in (
        (pair.fp8[1].keys, pair.exact[1].keys),
        (pair.fp8[1].values, pair.exact[1].values),
    ):
        assert got.dtype == torch.bfloat16
        window = pair.config.window
        used, exact = got[:, :SEQUENCES, :window].float(), wanted[:, :SEQUENCES, :window]
        assert (used - exact).square().mean().sqrt() < 0.06 * exact.square().mean().sqrt()


@pytest.mark.parametrize("rows", [2, 8, 16])
def test_its_drafts_are_mostly_those_of_the_float32_form(pair: Pair, rows: int) -> None:
    exact, fp8 = pair.drafts(rows)
    same = exact == fp8
    # of 131 tokens hardly one would agree by chance; with random weights many scores are close to each other,
    # and each token chosen otherwise changes those behind it
    assert same[:, 0].double().mean() > 0.75
    assert same.double().mean() > 0.5


def test_two_runs_agree_to_the_bit(pair: Pair) -> None:
    assert torch.equal(pair.drafts(16)[1], pair.drafts(16)[1])


def test_a_sequence_drafts_the_same_beside_others_and_alone(pair: Pair) -> None:
    model, cache = pair.fp8
    together = pair.drafts(8)[1]
    for slot in (0, 17, SEQUENCES - 1):
        one = torch.tensor([slot])
        alone = model.propose(one, one, torch.tensor([CONTEXT]), cache, rows=8)
        assert torch.equal(alone[0], together[slot])
