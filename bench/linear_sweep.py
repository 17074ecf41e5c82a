"""Tries launch settings of the FP8 product in Triton; sparkle/kernels/tuning.py holds what won for lm_head.

    python -m bench.linear_sweep

A product is timed with a norm behind it, as it stands in a pass: the norm adds the parts of a split, and the
next product fetches its first weights while the norm runs. Prints the best three settings of each product,
width and split, as tile columns, stages, warps and iterations fetched.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from bench.gpu_timing import time_us
from bench.shapes_27b import (
    ADDED_IN_PARTS,
    EPS,
    HIDDEN,
    PRODUCTS,
    VOCABULARY,
    random_blocks,
    random_rows,
    rotation,
)
from sparkle.kernels.fp8_linear import fp8_linear_triton, sum_parts_triton
from sparkle.kernels.lm_head import lm_head_greedy_triton
from sparkle.kernels.norm_quant import add_rms_norm_quantise
from sparkle.kernels.quantise import Fp8Blocks, Fp8Rows
from sparkle.kernels.tuning import LinearSettings

SPLITS = {"gdn_in": (1, 2), "attention_in": (1, 2), "out": (3, 4, 6), "gate_up": (1,), "down": (3, 4, 6)}
STAGES = (3, 4, 6, 8)
FETCHES = (0, 1, 2, 4)
WIDTHS = (16, 32, 64)
SHARED_BYTES = 220_000

Launch = Callable[[LinearSettings, int], object]
Timed = tuple[float, LinearSettings]


def candidates(rows: int, split: int) -> list[LinearSettings]:
    """Settings worth a try: those whose accumulators fit in registers and whose warps all multiply."""
    found: list[LinearSettings] = []
    for block_columns, stages, warps in itertools.product((64, 128, 256), STAGES, (4, 8)):
        fits = block_columns * rows <= 2048 * warps and stages * 128 * (block_columns + rows) < SHARED_BYTES
        # four warps multiply 64 weight rows at a time
        if fits and 16 * warps <= block_columns <= 32 * warps and not (warps == 8 and rows == 16):
            tried = LinearSettings(
                block_columns=block_columns, split=split, stages=stages, warps=warps, fetch=0
            )
            found.append(tried)
    return found


def product(
    x: Fp8Rows,
    weights: list[Fp8Blocks],
    residual: Tensor,
    added: bool,
    settings: LinearSettings,
    index: int,
) -> object:
    """A product and the norm behind it, which adds its parts where `added`."""
    w = weights[index % len(weights)]
    parts = fp8_linear_triton(x, w, dtype=torch.bfloat16, settings=settings, pdl=True)
    if not added and settings.split > 1:
        sum_parts_triton(parts, dtype=torch.bfloat16, pdl=True)
    addend = parts if added else residual[None]
    return add_rms_norm_quantise(residual, addend, residual[0], eps=EPS)


def head(x: Fp8Rows, weights: list[Fp8Blocks], settings: LinearSettings, index: int) -> object:
    """The greedy head."""
    w = weights[index % len(weights)]
    return lm_head_greedy_triton(x, w, vocabulary=VOCABULARY, settings=settings, pdl=True)


def best_of(launch: Launch, rows: int, split: int, count: int) -> list[Timed]:
    """The three fastest: first of all tiles, then with each way of fetching ahead."""

    def timed(tried: list[LinearSettings]) -> list[Timed]:
        results = [(time_us(partial(launch, settings), count, replays=5)[0], settings) for settings in tried]
        return sorted(results, key=lambda result: result[0])[:3]

    tiles = timed(candidates(rows, split))
    return timed([replace(settings, fetch=fetch) for _, settings in tiles for fetch in FETCHES])


def report(case: str, rows: int, split: int, best: list[Timed], read_bytes: int) -> None:
    """One line."""
    shown = "; ".join(f"{us:.1f} us n{s.block_columns} st{s.stages} w{s.warps} f{s.fetch}" for us, s in best)
    rate = read_bytes / best[0][0] / 1e6
    print(f"{case:12s} {rows:3d} split {split}: {rate:.2f} TB/s; {shown}", flush=True)


def main() -> None:
    """Sweeps every product, then the head."""
    for name, splits in SPLITS.items():
        weights = rotation(*PRODUCTS[name])
        read_bytes, depth = weights[0].values.numel(), PRODUCTS[name][1]
        for rows, split in itertools.product(WIDTHS, splits):
            residual = torch.randn(rows, HIDDEN, dtype=torch.bfloat16, device="cuda")
            x = random_rows(rows, depth)
            launch = partial(product, x, weights, residual, name in ADDED_IN_PARTS)
            report(name, rows, split, best_of(launch, rows, split, max(16, len(weights))), read_bytes)
    weights = [random_blocks(VOCABULARY, HIDDEN)]
    for rows in WIDTHS:
        launch = partial(head, random_rows(rows, HIDDEN), weights)
        report("lm_head", rows, 1, best_of(launch, rows, 1, 2), weights[0].values.numel())


if __name__ == "__main__":
    main()
