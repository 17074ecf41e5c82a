"""What the products of few rows share: a ring of stages in shared memory for a program's weights.

A unit of work is a tile of 128 weight rows and 128 columns of K. A program takes its tiles' units of one
group of K, then of the next, so that the activation's columns are copied once for all its tiles: with many
rows they are a third of all that is copied. Bulk copies fill a stage and its barrier tells when; the tensor
core empties it. Weights and their scales are nobody's output, so a program asks for its first units before
the kernel in front has ended. Knows no product.

A program's run is (row, apart, start, stop): its tiles begin at the weight rows row, row + apart, ..., and of
each it takes the groups start..stop of K. A place in it is the (tile, group) of a unit.
"""

from __future__ import annotations

from typing import Any, cast

from torch import Tensor

from sparkle.kernels.jit import Block, Pointer, constexpr, gl, gluon_jit, hopper, tl

TILE_ROWS = 128


def in_tiles(matrix: Tensor, rows: int) -> object:
    """The argument by which a kernel copies [rows, 128] of e4m3 `matrix`, dense; past its end are zeros."""
    # imported late: it exists on Linux alone
    from triton.experimental.gluon.nvidia.hopper import (  # pyright: ignore[reportMissingTypeStubs] no types
        TensorDescriptor,
    )

    tile = [rows, 128]
    layout = gl.NVMMASharedLayout.get_default_for(tile, gl.float8e4nv)
    return cast(Any, TensorDescriptor).from_tensor(matrix, tile, layout)


def power_of_two(count: int) -> int:
    """The least power of two that is not below `count`: tensors in a kernel have such sizes."""
    return 1 << (count - 1).bit_length()


@gluon_jit()
def tile_products(
    w_tiles: Block,
    x_tiles: Block,
    p_xs: Pointer,
    p_ws: Pointer,
    run: Block,
    i_m: Block,
    rows: Block,
    columns: Block,
    GROUPS: constexpr,
    TILES: constexpr,
    BM: constexpr,
    STAGES: constexpr,
    ROW_STAGES: constexpr,
    SLOTS: constexpr,
    PDL: constexpr,
) -> Block:
    """TILES products float32 [128, BM] of a run with the rows i_m on; SLOTS: a power of two for its groups.

    w_tiles e4m3 [columns, GROUPS * 128] in tiles of 128 rows, x_tiles e4m3 [rows, GROUPS * 128] of BM;
    p_xs float32 [GROUPS, rows], p_ws float32 [ceil(columns / 128), GROUPS].
    """
    mma: constexpr = gl.NVMMADistributedLayout([3, 0], [gl.num_warps(), 1], [16, BM, 32])
    by_row: constexpr = gl.SliceLayout(0, mma)
    start, stop = run[2], run[3]
    ring = fill_with_weights(w_tiles, x_tiles, run, TILES, BM, STAGES, ROW_STAGES)
    s_ws = keep_weight_scales(p_ws, run, columns, GROUPS, TILES, SLOTS)
    if PDL:
        tl.extra.cuda.gdc_wait()
    for i in gl.static_range(ROW_STAGES):
        ask_for_rows(x_tiles, i_m, ring, i, start + i, run, BM)
    s_xs = keep_row_scales(p_xs, start, stop, i_m, rows, SLOTS, BM)
    gl.thread_barrier()
    # built up by sums of tuples: Triton unpacks nothing into one
    sums: Block = ()
    for _ in gl.static_range(TILES):
        sums = sums + (gl.zeros([128, BM], gl.float32, mma),)  # noqa: RUF005
    ahead = (STAGES % TILES, start + STAGES // TILES)
    stage, phase, row_stage, row_phase = 0, 0, 0, 0
    for group in range(start, stop):
        hopper.mbarrier.wait(ring[3].index(row_stage), row_phase)
        longer: Block = ()
        for i_tile in gl.static_range(TILES):
            b_unit = unit_product(ring, stage, phase, row_stage, BM)
            ask_for_weights(w_tiles, ring, stage, ahead, run)
            ahead = following(ahead, TILES)
            stage, phase = turn(stage, phase, STAGES)
            # each group of 128 leaves the tensor core's narrow accumulator before it is added
            b_ws = s_ws[i_tile].index(group - start).load(by_row)
            b_xs = s_xs.index(group - start).load(by_row)
            longer = longer + (sums[i_tile] + b_unit * (b_ws * b_xs)[None, :],)  # noqa: RUF005
        sums = longer
        ask_for_rows(x_tiles, i_m, ring, row_stage, group + ROW_STAGES, run, BM)
        row_stage, row_phase = turn(row_stage, row_phase, ROW_STAGES)
    return sums


@gluon_jit()
def fill_with_weights(
    w_tiles: Block,
    x_tiles: Block,
    run: Block,
    TILES: constexpr,
    BM: constexpr,
    STAGES: constexpr,
    ROW_STAGES: constexpr,
) -> Block:
    """The ring, filled as far as weights go: stages of weights, stages of rows, and a barrier for each."""
    s_w = gl.allocate_shared_memory(gl.float8e4nv, [STAGES, 128, 128], w_tiles.layout)
    s_x = gl.allocate_shared_memory(gl.float8e4nv, [ROW_STAGES, BM, 128], x_tiles.layout)
    s_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], hopper.mbarrier.MBarrierLayout())
    s_rows_full = gl.allocate_shared_memory(gl.int64, [ROW_STAGES, 1], hopper.mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        hopper.mbarrier.init(s_full.index(i), count=1)
    for i in gl.static_range(ROW_STAGES):
        hopper.mbarrier.init(s_rows_full.index(i), count=1)
    # the copies go another way to shared memory than the threads' stores
    hopper.fence_async_shared()
    gl.thread_barrier()
    ring = (s_w, s_x, s_full, s_rows_full)
    for i in gl.static_range(STAGES):
        ask_for_weights(w_tiles, ring, i, (i % TILES, run[2] + i // TILES), run)
    return ring


@gluon_jit()
def following(place: Block, TILES: constexpr) -> Block:
    """The place behind: the next tile of the same group of K, or the first of the next group."""
    tile, group = place
    ends = tile + 1 == TILES
    return gl.where(ends, 0, tile + 1), gl.where(ends, group + 1, group)


@gluon_jit()
def ask_for_weights(w_tiles: Block, ring: Block, stage: Block, place: Block, run: Block) -> None:
    """Where the run goes so far: copies a unit's weights to a stage."""
    tile, group = place
    full, wanted = ring[2].index(stage), group < run[3]
    hopper.mbarrier.expect(full, 128 * 128, pred=wanted)
    corner = [run[0] + tile * run[1], group * 128]
    hopper.tma.async_copy_global_to_shared(w_tiles, corner, full, ring[0].index(stage), pred=wanted)


@gluon_jit()
def ask_for_rows(
    x_tiles: Block, i_m: Block, ring: Block, stage: Block, group: Block, run: Block, BM: constexpr
) -> None:
    """Likewise the activation's columns of a group."""
    full, wanted = ring[3].index(stage), group < run[3]
    hopper.mbarrier.expect(full, BM * 128, pred=wanted)
    corner = [i_m, group * 128]
    hopper.tma.async_copy_global_to_shared(x_tiles, corner, full, ring[1].index(stage), pred=wanted)


@gluon_jit()
def unit_product(ring: Block, stage: Block, phase: Block, row_stage: Block, BM: constexpr) -> Block:
    """The product float32 [128, BM] of a stage once it is full; afterwards it may be filled again."""
    mma: constexpr = gl.NVMMADistributedLayout([3, 0], [gl.num_warps(), 1], [16, BM, 32])
    zero = gl.zeros([128, BM], gl.float32, mma)
    hopper.mbarrier.wait(ring[2].index(stage), phase)
    x_tile = ring[1].index(row_stage).permute((1, 0))
    b_unit = hopper.warpgroup_mma(ring[0].index(stage), x_tile, zero, use_acc=False, is_async=True)
    b_unit = hopper.warpgroup_mma_wait(0, deps=[b_unit])
    gl.thread_barrier()
    return b_unit


@gluon_jit()
def turn(stage: Block, phase: Block, STAGES: constexpr) -> Block:
    """The stage behind `stage`, and the phase that its barrier ends next."""
    wraps = stage + 1 == STAGES
    return gl.where(wraps, 0, stage + 1), gl.where(wraps, phase ^ 1, phase)


@gluon_jit()
def keep_weight_scales(
    p_ws: Pointer, run: Block, columns: Block, GROUPS: constexpr, TILES: constexpr, SLOTS: constexpr
) -> Block:
    """Each tile's scales float32 [SLOTS] of the run's groups, in shared memory, to be taken one by one."""
    line: constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    flat: constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    o_group = gl.minimum(run[2] + gl.arange(0, SLOTS, line), GROUPS - 1)
    kept: Block = ()
    for i_tile in gl.static_range(TILES):
        # a tile past the last column is zeros: any scale will do
        block = gl.minimum(run[0] + i_tile * run[1], columns - 1) // 128
        s_scales = gl.allocate_shared_memory(gl.float32, [SLOTS], flat)
        s_scales.store(gl.load(p_ws + block * GROUPS + o_group))
        kept = kept + (s_scales._reinterpret(gl.float32, [SLOTS, 1], flat),)  # noqa: RUF005
    return kept


@gluon_jit()
def keep_row_scales(
    p_xs: Pointer, start: Block, stop: Block, i_m: Block, rows: Block, SLOTS: constexpr, BM: constexpr
) -> Block:
    """The rows' scales float32 [BM] of each group start..stop of K, likewise."""
    spread: constexpr = gl.BlockedLayout([1, 4], [128 // BM, BM // 4], [gl.num_warps(), 1], [1, 0])
    s_xs = gl.allocate_shared_memory(gl.float32, [SLOTS, BM], gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))
    o_group = start + gl.arange(0, SLOTS, gl.SliceLayout(1, spread))[:, None]
    o_m = i_m + gl.arange(0, BM, gl.SliceLayout(0, spread))[None, :]
    s_xs.store(gl.load(p_xs + o_group * rows + o_m, mask=(o_group < stop) & (o_m < rows), other=0.0))
    return s_xs._reinterpret(gl.float32, [SLOTS, BM], gl.SwizzledSharedLayout(1, 1, 1, [0]))
