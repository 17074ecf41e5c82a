"""x · wᵀ for few rows at the speed of reading w: programs of equal work, about one a multiprocessor.

A program multiplies some tiles of 128 weight rows, or one tile's share of K. Knows no layers.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sparkle.kernels.jit import Block, Pointer, constexpr, gl, gluon_jit, tl
from sparkle.kernels.quantise import GROUP, Fp8Blocks, Fp8Rows
from sparkle.kernels.tuning import RingSettings, block_rows
from sparkle.kernels.weight_ring import (
    TILE_ROWS,
    ask_for_rows,
    ask_for_weights,
    fill_with_weights,
    following,
    in_tiles,
    keep,
    keep_row_scales,
    power_of_two,
    turn,
    unit_products,
    wait_and_fill_with_rows,
)


def fp8_few_rows(
    x: Fp8Rows, w: Fp8Blocks, *, dtype: torch.dtype, settings: RingSettings, pdl: bool
) -> Tensor:
    """Launches the kernel of fp8_linear_parts; `pdl`: as a programmatic dependent launch."""
    rows, (columns, depth) = x.values.shape[0], w.values.shape
    split, width, groups = settings.split, block_rows(rows), depth // GROUP
    most_groups = -(-groups // split)
    out = torch.empty(
        split, rows, columns, dtype=dtype if split == 1 else torch.float32, device=x.values.device
    )
    if rows:
        programs = -(-columns // (2 * TILE_ROWS * settings.tiles))
        fp8_few_rows_kernel[programs, split, -(-rows // width)](
            in_tiles(w.values, TILE_ROWS),
            in_tiles(x.values, width),
            x.scales,
            w.scales,
            out,
            rows,
            columns,
            GROUPS=groups,
            SPLIT=split,
            TILES=settings.tiles,
            BM=width,
            STAGES=settings.stages,
            UNIT_SLOTS=power_of_two(settings.tiles * most_groups),
            GROUP_SLOTS=power_of_two(most_groups),
            PDL=pdl,
            num_warps=4,
            launch_pdl=pdl,
        )
    return out


@gluon_jit("rows", "columns")
def fp8_few_rows_kernel(
    w_tiles: Block,  # e4m3 [columns, GROUPS * 128] in tiles of 64 rows
    x_tiles: Block,  # e4m3 [rows, GROUPS * 128] in tiles of BM rows
    p_xs: Pointer,  # float32 [GROUPS, rows]
    p_ws: Pointer,  # float32 [ceil(columns / 128), GROUPS]
    p_out: Pointer,  # float [SPLIT, rows, columns]
    rows: int,
    columns: int,
    GROUPS: constexpr,
    SPLIT: constexpr,
    TILES: constexpr,  # of 128 rows a program, 1 where K is split
    BM: constexpr,
    STAGES: constexpr,
    UNIT_SLOTS: constexpr,
    GROUP_SLOTS: constexpr,
    PDL: constexpr,
) -> None:
    mma: constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BM, 32])
    by_row: constexpr = gl.SliceLayout(0, mma)
    line: constexpr = gl.BlockedLayout([1], [32], [4], [0])
    first, i_split, i_m = gl.program_id(0) * TILES, gl.program_id(1), gl.program_id(2) * BM
    start = i_split * GROUPS // SPLIT
    stop = (i_split + 1) * GROUPS // SPLIT
    all_tiles = gl.cdiv(columns, 128)
    tiles = gl.minimum(TILES, all_tiles - first)
    run = (first * 128, 128, (first + tiles) * 128, 64, start, stop)
    ring = fill_with_weights(w_tiles, x_tiles, run, BM, STAGES)
    o_unit = first * GROUPS + start + gl.arange(0, UNIT_SLOTS, line)
    s_ws = keep(p_ws + gl.minimum(o_unit, all_tiles * GROUPS - 1), UNIT_SLOTS)
    ahead = wait_and_fill_with_rows(x_tiles, i_m, ring, run, STAGES, PDL)
    s_xs = keep_row_scales(p_xs, start, stop, i_m, rows, GROUP_SLOTS, BM)
    gl.thread_barrier()
    zero = gl.zeros([64, BM], gl.float32, mma)
    stage, phase = 0, 0
    for i_tile in range(tiles):
        b_a, b_b = zero, zero
        for i_group in range(stop - start):
            b_unit_a, b_unit_b = unit_products(ring, stage, phase, BM)
            ask_for_weights(w_tiles, ring, stage, ahead, run, BM)
            ask_for_rows(x_tiles, i_m, ring, stage, ahead, run)
            ahead = following(ahead, run)
            stage, phase = turn(stage, phase, STAGES)
            # each group of 128 leaves the tensor core's narrow accumulator before it is added
            b_ws, b_xs = s_ws.index(i_tile * GROUPS + i_group).load(by_row), s_xs.index(i_group).load(by_row)
            b_a += b_unit_a * (b_ws * b_xs)[None, :]
            b_b += b_unit_b * (b_ws * b_xs)[None, :]
        o_m = i_m + gl.arange(0, BM, by_row)[None, :]
        o_n = (first + i_tile) * 128 + gl.arange(0, 64, gl.SliceLayout(1, mma))[:, None]
        p_y = p_out + (i_split * rows + o_m) * columns + o_n
        gl.store(p_y, b_a.to(p_out.dtype.element_ty), mask=(o_n < columns) & (o_m < rows))
        gl.store(p_y + 64, b_b.to(p_out.dtype.element_ty), mask=(o_n + 64 < columns) & (o_m < rows))
    if PDL:
        # at the end: waiting programs that start early would take the place of working ones
        tl.extra.cuda.gdc_launch_dependents()
