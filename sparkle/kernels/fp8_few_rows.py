"""x · wᵀ for few rows at the speed of reading w: programs of equal work, about one a multiprocessor.

A program multiplies some tiles of 128 weight rows, or their share of K. Knows no layers.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sparkle.kernels.jit import Block, Pointer, constexpr, gl, gluon_jit, tl
from sparkle.kernels.quantise import GROUP, Fp8Blocks, Fp8Rows
from sparkle.kernels.tuning import RingSettings, block_rows
from sparkle.kernels.weight_ring import TILE_ROWS, in_tiles, power_of_two, tile_products


def fp8_few_rows(
    x: Fp8Rows, w: Fp8Blocks, *, dtype: torch.dtype, settings: RingSettings, pdl: bool
) -> Tensor:
    """Launches the kernel of fp8_linear_parts; `pdl`: as a programmatic dependent launch."""
    rows, (columns, depth) = x.values.shape[0], w.values.shape
    split, width, groups = settings.split, block_rows(rows), depth // GROUP
    out = torch.empty(
        split, rows, columns, dtype=dtype if split == 1 else torch.float32, device=x.values.device
    )
    if rows:
        programs = -(-columns // (TILE_ROWS * settings.tiles))
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
            ROW_STAGES=settings.row_stages,
            SLOTS=power_of_two(-(-groups // split)),
            PDL=pdl,
            num_warps=settings.warps,
            launch_pdl=pdl,
        )
    return out


@gluon_jit("rows", "columns")
def fp8_few_rows_kernel(
    w_tiles: Block,  # e4m3 [columns, GROUPS * 128] in tiles of 128 rows
    x_tiles: Block,  # e4m3 [rows, GROUPS * 128] in tiles of BM rows
    p_xs: Pointer,  # float32 [GROUPS, rows]
    p_ws: Pointer,  # float32 [ceil(columns / 128), GROUPS]
    p_out: Pointer,  # float [SPLIT, rows, columns]
    rows: int,
    columns: int,
    GROUPS: constexpr,
    SPLIT: constexpr,
    TILES: constexpr,  # of 128 rows a program
    BM: constexpr,
    STAGES: constexpr,
    ROW_STAGES: constexpr,
    SLOTS: constexpr,
    PDL: constexpr,
) -> None:
    if PDL:
        # what stands behind is no product: its few programs lie beside these and wait for their end
        tl.extra.cuda.gdc_launch_dependents()
    mma: constexpr = gl.NVMMADistributedLayout([3, 0], [gl.num_warps(), 1], [16, BM, 32])
    i_n, i_split, i_m = gl.program_id(0) * TILES * 128, gl.program_id(1), gl.program_id(2) * BM
    run = (i_n, 128, i_split * GROUPS // SPLIT, (i_split + 1) * GROUPS // SPLIT)
    sums = tile_products(
        w_tiles, x_tiles, p_xs, p_ws, run, i_m, rows, columns,
        GROUPS, TILES, BM, STAGES, ROW_STAGES, SLOTS, PDL,
    )  # fmt: skip
    o_m = i_m + gl.arange(0, BM, gl.SliceLayout(0, mma))[None, :]
    for i_tile in gl.static_range(TILES):
        o_n = i_n + i_tile * 128 + gl.arange(0, 128, gl.SliceLayout(1, mma))[:, None]
        p_y = p_out + (i_split * rows + o_m) * columns + o_n
        gl.store(p_y, sums[i_tile].to(p_out.dtype.element_ty), mask=(o_n < columns) & (o_m < rows))
