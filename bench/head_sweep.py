"""Tries launch settings of the output product; sparkle/kernels/tuning.py holds what won.

    python -m bench.head_sweep

Prints the best three settings of each width, as tile columns, stages, warps and iterations fetched. The other
products of a layer have kernels with no settings but those that follow from their shapes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from bench.gpu_timing import time_us
from bench.shapes_27b import HIDDEN, VOCABULARY, random_blocks, random_rows
from sparkle.kernels.lm_head import lm_head_greedy_triton
from sparkle.kernels.quantise import Fp8Blocks, Fp8Rows
from sparkle.kernels.tuning import LinearSettings

STAGES = (3, 4, 6, 8)
FETCHES = (0, 1, 2, 4)
WIDTHS = (16, 32, 64)
SHARED_BYTES = 220_000
LAUNCHES = 2
"""In one graph: a weight of this size is not in the cache when its turn comes again."""

Launch = Callable[[LinearSettings, int], object]
Timed = tuple[float, LinearSettings]


def candidates(rows: int) -> list[LinearSettings]:
    """Settings worth a try: those whose accumulators fit in registers and whose warps all multiply."""
    found: list[LinearSettings] = []
    for block_columns, stages, warps in itertools.product((64, 128, 256), STAGES, (4, 8)):
        fits = block_columns * rows <= 2048 * warps and stages * 128 * (block_columns + rows) < SHARED_BYTES
        # four warps multiply 64 weight rows at a time
        if fits and 16 * warps <= block_columns <= 32 * warps and not (warps == 8 and rows == 16):
            tried = LinearSettings(block_columns=block_columns, split=1, stages=stages, warps=warps, fetch=0)
            found.append(tried)
    return found


def head(x: Fp8Rows, w: Fp8Blocks, settings: LinearSettings, _: int) -> object:
    """The greedy head."""
    return lm_head_greedy_triton(x, w, vocabulary=VOCABULARY, settings=settings, pdl=True)


def best_of(launch: Launch, rows: int) -> list[Timed]:
    """The three fastest: first of all tiles, then with each way of fetching ahead."""

    def timed(tried: list[LinearSettings]) -> list[Timed]:
        results = [
            (time_us(partial(launch, settings), LAUNCHES, replays=5)[0], settings) for settings in tried
        ]
        return sorted(results, key=lambda result: result[0])[:3]

    tiles = timed(candidates(rows))
    return timed([replace(settings, fetch=fetch) for _, settings in tiles for fetch in FETCHES])


def main() -> None:
    """Sweeps each width."""
    w = random_blocks(VOCABULARY, HIDDEN)
    for rows in WIDTHS:
        best = best_of(partial(head, random_rows(rows, HIDDEN), w), rows)
        shown = "; ".join(
            f"{us:.1f} us n{s.block_columns} st{s.stages} w{s.warps} f{s.fetch}" for us, s in best
        )
        print(f"{rows:3d} rows: {w.values.numel() / best[0][0] / 1e6:.2f} TB/s; {shown}", flush=True)


if __name__ == "__main__":
    main()
