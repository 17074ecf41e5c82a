"""Launch settings of the FP8 products by shape, chosen by measurement on one H200 and never at run time.

How often K is split is the same for every number of rows: a row's result then does not depend on how many
rows stand beside it, so a draft's rows and a plain pass agree to the bit.
"""

from __future__ import annotations

from dataclasses import dataclass

MAX_BLOCK_ROWS = 64
"""The most activation rows a program holds, and the most for which our kernels are faster than scaled_mm.

With 128 a program's accumulators leave no room for a second one.
"""

MULTIPROCESSORS = 132


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearSettings:
    """How a product's kernel is launched."""

    block_columns: int
    """Weight rows (columns of the result) a program holds: the M side of the tensor core."""
    split: int
    """Programs among which K is divided."""
    stages: int
    """Loads in flight, in iterations of 128 columns of K."""
    warps: int
    fetch: int
    """Iterations whose weights are asked for before the kernel in front has ended."""

    def __post_init__(self) -> None:
        if self.block_columns not in (64, 128, 256):
            raise ValueError(f"block_columns is {self.block_columns} but must be 64, 128 or 256")
        if self.split < 1 or self.stages < 1 or self.warps not in (4, 8) or self.fetch < 0:
            raise ValueError(
                f"split {self.split} and stages {self.stages} must be at least 1, warps {self.warps} 4 or 8, "
                f"fetch {self.fetch} at least 0"
            )


@dataclass(frozen=True, slots=True)
class RingSettings:
    """How a product's kernel with weights in a ring of stages is launched."""

    split: int
    """Programs among which K is divided."""
    tiles: int
    """Tiles of 128 weight rows of a program, side by side."""
    stages: int
    """Units of 128 weight rows and 128 columns of K in shared memory."""
    row_stages: int
    """Groups of 128 columns of the activation there."""
    warps: int

    def __post_init__(self) -> None:
        if min(self.split, self.tiles, self.stages, self.row_stages) < 1 or self.warps not in (4, 8):
            raise ValueError(
                f"split {self.split}, tiles {self.tiles}, stages {self.stages} and row_stages "
                f"{self.row_stages} must be at least 1, warps {self.warps} 4 or 8"
            )


@dataclass(frozen=True, slots=True)
class _Tile:
    block_columns: int
    stages: int
    warps: int
    fetch: int


# by (tiles, rows) of a program: (stages, row stages, warps), so that two programs fit a multiprocessor
_RING_STAGES = {
    (1, 16): (5, 5, 4),
    (1, 32): (5, 5, 4),
    (1, 64): (4, 4, 4),
    (2, 16): (4, 2, 4),
    (2, 32): (4, 2, 4),
    (2, 64): (4, 3, 8),
}

# [N, K] of Qwen3.8-27B: (split, tiles), so that about 132 programs have equal work; figures in bench/LOG.md
_RING = {
    (16384, 5120): (1, 1),  # gdn_in
    (14336, 5120): (1, 1),  # attention_in
    (5120, 6144): (3, 1),  # out
    (34816, 5120): (1, 2),  # gate_up; with SiLU, as the engine has it, likewise
    (5120, 17408): (3, 1),  # down
    (5120, 10240): (3, 1),  # joined, of the draft head
    (5120, 4096): (3, 1),  # out, of DFlash2; its other products take the kernel for any shape
}

# by the rows a program holds; bench/head_sweep.py measures, the figures stand in bench/results
_HEADS = ((248320, 5120), (65536, 5120))
"""All tokens, and those that are guessed."""
_HEAD_TILES = {16: _Tile(64, 6, 4, 1), 32: _Tile(128, 3, 4, 2), 64: _Tile(128, 3, 4, 1)}


def measured_shapes() -> list[tuple[int, int]]:
    """The shapes [N, K] with settings of their own."""
    return [*_RING, *_HEADS]


def ring_settings(columns: int, depth: int, *, rows: int) -> RingSettings | None:
    """The settings for `rows` rows times a weight [columns, depth], if that is a layer's of Qwen3.8-27B."""
    measured = _RING.get((columns, depth))
    return None if measured is None else ring_of(*measured, rows=rows)


def ring_of(split: int, tiles: int, *, rows: int) -> RingSettings:
    """The settings of programs that divide K by `split` and have one tile or two."""
    return RingSettings(split, tiles, *_RING_STAGES[tiles, block_rows(rows)])


def linear_settings(columns: int, depth: int, *, rows: int) -> LinearSettings:
    """The settings of the kernel that takes a weight of any shape [columns, depth], for `rows` rows."""
    if (columns, depth) in _HEADS:
        tile, split = _HEAD_TILES[block_rows(rows)], 1
    else:
        # about two programs a multiprocessor, each with at least four groups of K
        tiles = -(-columns // 64)
        tile = _Tile(64, 4, 4, 0)
        split = max(1, min(8, depth // 512, round(2 * MULTIPROCESSORS / tiles)))
    return LinearSettings(
        block_columns=tile.block_columns,
        split=split,
        stages=tile.stages,
        warps=tile.warps,
        fetch=tile.fetch,
    )


def block_rows(rows: int) -> int:
    """Activation rows a program holds, the tensor core's N side: no wgmma is made of fewer than 16."""
    return max(16, min(MAX_BLOCK_ROWS, 1 << (rows - 1).bit_length()))
