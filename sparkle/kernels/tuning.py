"""Launch settings of the FP8 products by shape, chosen by measurement on one H200 and never at run time.

How often K is split is the same for every number of rows: a row's result then does not depend on how many
rows stand beside it, so a draft's rows and a plain pass agree to the bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

MAX_BLOCK_ROWS = 64
"""The most activation rows a program holds: with 128 its accumulators leave no room for a second program."""

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
class _Tile:
    block_columns: int
    stages: int
    warps: int
    fetch: int


@dataclass(frozen=True, slots=True)
class _Measured:
    few_rows: int
    split: int
    tiles: Mapping[int, _Tile]
    """By the rows a program holds."""


# [N, K] of Qwen3.8-27B; bench/linear_sweep.py measures, the figures stand in bench/results
_H200 = {
    # gdn_in
    (16384, 5120): _Measured(32, 1, {16: _Tile(64, 4, 4, 2), 32: _Tile(64, 4, 4, 2), 64: _Tile(64, 6, 4, 2)}),
    # attention_in
    (14336, 5120): _Measured(32, 1, {16: _Tile(64, 4, 4, 2), 32: _Tile(64, 4, 4, 2), 64: _Tile(64, 6, 4, 4)}),
    # out
    (5120, 6144): _Measured(64, 4, {16: _Tile(64, 3, 4, 1), 32: _Tile(64, 3, 4, 1), 64: _Tile(64, 3, 4, 1)}),
    # gate_up
    (34816, 5120): _Measured(
        64, 1, {16: _Tile(128, 3, 4, 1), 32: _Tile(128, 3, 8, 1), 64: _Tile(64, 3, 4, 2)}
    ),
    # down
    (5120, 17408): _Measured(
        64, 6, {16: _Tile(64, 3, 4, 1), 32: _Tile(64, 4, 4, 2), 64: _Tile(128, 3, 4, 1)}
    ),
    # lm_head
    (248320, 5120): _Measured(
        64, 1, {16: _Tile(64, 6, 4, 1), 32: _Tile(128, 3, 4, 2), 64: _Tile(128, 3, 4, 1)}
    ),
}


def measured_shapes() -> list[tuple[int, int]]:
    """The shapes [N, K] with settings of their own."""
    return list(_H200)


def few_rows(columns: int, depth: int) -> int:
    """Up to so many rows our kernel is faster than scaled_mm for a weight [columns, depth]."""
    return _settings(columns, depth).few_rows


def linear_settings(columns: int, depth: int, *, rows: int) -> LinearSettings:
    """The settings for `rows` rows times a weight [columns, depth]."""
    measured = _settings(columns, depth)
    tile = measured.tiles[block_rows(rows)]
    return LinearSettings(
        block_columns=tile.block_columns,
        split=measured.split,
        stages=tile.stages,
        warps=tile.warps,
        fetch=tile.fetch,
    )


def block_rows(rows: int) -> int:
    """Activation rows a program holds, the tensor core's N side: no wgmma is made of fewer than 16."""
    return max(16, min(MAX_BLOCK_ROWS, 1 << (rows - 1).bit_length()))


def _settings(columns: int, depth: int) -> _Measured:
    return _H200.get((columns, depth)) or _unmeasured(columns, depth)


def _unmeasured(columns: int, depth: int) -> _Measured:
    # about two programs a multiprocessor, each with at least four groups of K
    tiles = -(-columns // 64)
    split = max(1, min(8, depth // 512, round(2 * MULTIPROCESSORS / tiles)))
    return _Measured(MAX_BLOCK_ROWS, split, {width: _Tile(64, 4, 4, 0) for width in (16, 32, 64)})
