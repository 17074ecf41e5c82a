"""The DFlash2 model in FP8 on the GPU: as on the CPU but for rounding, and a graph holds both steps."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from sparkle.kernels import ops
from sparkle.model.dflash_cache import ContextBatch, DFlashCache
from sparkle.model.dflash_config import read_dflash_config
from sparkle.model.dflash_selector import Draws
from sparkle.model.dflash_weights import load_fp8_dflash_weights
from sparkle.model.fp8_dflash import Fp8DFlash
from tests.model.dflash_reference import DFlashReference, DFlashShape, target_of

pytestmark = pytest.mark.gpu

SHAPES = {
    "small heads": DFlashShape(
        vocab_size=144,
        hidden_size=256,
        intermediate_size=512,
        head_dim=64,
        num_hidden_layers=3,
        conv_group_size=16,
        selector_rank=16,
        sliding_window=40,
    ),
    "published heads": DFlashShape(
        vocab_size=144,
        hidden_size=512,
        intermediate_size=1024,
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=128,
        num_hidden_layers=2,
        conv_group_size=16,
        selector_rank=256,
        sliding_window=2048,
    ),
}
LENGTHS = (0, 1, 30, 60, 61, 100, 39, 40) * 3
NOISE = 0.04
"""Relative error between two orders of summing: 0.017 on a CPU with noise of 1e-4 before each rounding."""
SAME = 0.4
"""Of all guesses: with random weights many scores are close, and each token chosen otherwise changes those
behind it. With noise as above 0.57 to 0.87 are the same, by chance hardly any would be."""
FIRST_SAME = 0.5
"""Of those behind an anchor: 0.65 to 0.91 with that noise."""


class Drafting:
    """The model on one device behind the same contexts, an unused place among them."""

    def __init__(self, directory: Path, shape: DFlashShape, device: torch.device) -> None:
        reference = DFlashReference(shape)
        self.config = read_dflash_config(directory, target_of(shape))
        self.model = Fp8DFlash(
            self.config,
            load_fp8_dflash_weights(directory, self.config, device),
            embedding=reference.embedding.bfloat16().to(device),
            lm_head=ops.quantise_blocks(reference.lm_head.to(device)),
            draft_vocab_size=shape.vocab_size - 5,
        )
        count = len(LENGTHS)
        self.cache = DFlashCache(self.config, num_slots=count, device=device, dtype=torch.bfloat16)
        draw = torch.Generator().manual_seed(3)
        outputs = torch.randn(sum(LENGTHS) + 5, self.config.taps_size, generator=draw).bfloat16()
        self.outputs = outputs.to(device)
        starts = torch.tensor([0, *LENGTHS]).cumsum(0)
        self.slots = torch.tensor([*range(count - 1, 0, -1), -1], device=device)
        self.batch = ContextBatch(
            span_starts=starts.to(device),
            slots=self.slots,
            contexts=torch.zeros(count, dtype=torch.int64, device=device),
            kept=torch.tensor(LENGTHS, device=device),
        )
        self.draws = Draws(
            temperatures=torch.tensor([0.0, 1.0] * (count // 2), dtype=torch.float64, device=device),
            chances=torch.rand(count, 15, dtype=torch.float64, generator=draw).to(device),
        )

    def draft(self, rows: int) -> Tensor:
        """Takes the contexts in, then drafts: of the real places int64 [S - 1, rows - 1]."""
        self.model.extend(self.outputs, self.batch, self.cache)
        draws = Draws(
            temperatures=self.draws.temperatures, chances=self.draws.chances[:, : rows - 1].contiguous()
        )
        anchors = torch.arange(len(LENGTHS), device=self.slots.device)
        return self.model.propose(anchors, self.slots, self.batch.kept, self.cache, rows=rows, draws=draws)[
            :-1
        ]


@pytest.mark.parametrize("shape", SHAPES)
def test_it_drafts_on_the_gpu_as_on_the_cpu(shape: str, tmp_path: Path) -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs an H200")
    DFlashReference(SHAPES[shape]).save(tmp_path)
    cpu, gpu = (Drafting(tmp_path, SHAPES[shape], torch.device(name)) for name in ("cpu", "cuda"))
    window = cpu.config.window
    for rows in (2, 8, 16):
        wanted, got = cpu.draft(rows), gpu.draft(rows)
        for mine, other in ((gpu.cache.keys, cpu.cache.keys), (gpu.cache.values, cpu.cache.values)):
            kept, exact = mine[:, :-1, :window].cpu().float(), other[:, :-1, :window].float()
            assert (kept - exact).square().mean().sqrt() < NOISE * exact.square().mean().sqrt()
        same = (got.cpu() == wanted).double()
        assert same.mean() > SAME
        assert same[:, 0].mean() > FIRST_SAME
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            replayed = gpu.draft(rows)
        with torch.inference_mode():
            replayed.fill_(-1)
        graph.replay()
        assert torch.equal(replayed, got)
