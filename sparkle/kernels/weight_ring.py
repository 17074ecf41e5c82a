"""What the products of few rows share: a ring of stages in shared memory for a program's weights.

A unit of work is two tiles of 64 weight rows and 128 columns of K, and the same columns of the activation.
Bulk copies fill a stage and its barrier tells when; the tensor core empties it. Weights and their scales are
nobody's output, so a program asks for its first units before the kernel in front has ended. Knows no product.

A program's run is (row, step, end, apart, start, stop): its tiles lie at the rows row, row + step, ... before
`end`, the second one of a unit `apart` behind the first, and of each it takes the groups start..stop of K. A
place in it is the (row, group) of a unit.
"""

from __future__ import annotations

from typing import Any, cast

from torch import Tensor

from sparkle.kernels.jit import Block, Pointer, constexpr, gl, gluon_jit, hopper, tl

TILE_ROWS = 64


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
def fill_with_weights(w_tiles: Block, x_tiles: Block, run: Block, BM: constexpr, STAGES: constexpr) -> Block:
    """The ring, filled as far as weights go: two weight tiles, an activation tile and a barrier a stage."""
    s_a = gl.allocate_shared_memory(gl.float8e4nv, [STAGES, 64, 128], w_tiles.layout)
    s_b = gl.allocate_shared_memory(gl.float8e4nv, [STAGES, 64, 128], w_tiles.layout)
    s_x = gl.allocate_shared_memory(gl.float8e4nv, [STAGES, BM, 128], x_tiles.layout)
    s_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], hopper.mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        hopper.mbarrier.init(s_full.index(i), count=1)
    # the copies go another way to shared memory than the threads' stores
    hopper.fence_async_shared()
    gl.thread_barrier()
    ring = (s_a, s_b, s_x, s_full)
    place = (run[0], run[4])
    for i in gl.static_range(STAGES):
        ask_for_weights(w_tiles, ring, i, place, run, BM)
        place = following(place, run)
    return ring


@gluon_jit()
def wait_and_fill_with_rows(
    x_tiles: Block, i_m: Block, ring: Block, run: Block, STAGES: constexpr, PDL: constexpr
) -> Block:
    """Waits for the kernel in front, which has written the rows; returns the place of the next unit."""
    if PDL:
        tl.extra.cuda.gdc_wait()
    place = (run[0], run[4])
    for i in gl.static_range(STAGES):
        ask_for_rows(x_tiles, i_m, ring, i, place, run)
        place = following(place, run)
    return place


@gluon_jit()
def following(place: Block, run: Block) -> Block:
    """The place behind: the next group of K, or the next tile's first."""
    row, group = place
    ends = group + 1 == run[5]
    return gl.where(ends, row + run[1], row), gl.where(ends, run[4], group + 1)


@gluon_jit()
def ask_for_weights(
    w_tiles: Block, ring: Block, stage: Block, place: Block, run: Block, BM: constexpr
) -> None:
    """Where the run goes so far: announces all of the unit's bytes to a stage and copies its weights."""
    s_a, s_b, _, s_full = ring
    row, group = place
    full, wanted = s_full.index(stage), row < run[2]
    hopper.mbarrier.expect(full, (128 + BM) * 128, pred=wanted)
    hopper.tma.async_copy_global_to_shared(w_tiles, [row, group * 128], full, s_a.index(stage), pred=wanted)
    second = [row + run[3], group * 128]
    hopper.tma.async_copy_global_to_shared(w_tiles, second, full, s_b.index(stage), pred=wanted)


@gluon_jit()
def ask_for_rows(x_tiles: Block, i_m: Block, ring: Block, stage: Block, place: Block, run: Block) -> None:
    """Copies the activation of the same unit."""
    _, _, s_x, s_full = ring
    row, group = place
    full, wanted = s_full.index(stage), row < run[2]
    hopper.tma.async_copy_global_to_shared(x_tiles, [i_m, group * 128], full, s_x.index(stage), pred=wanted)


@gluon_jit()
def unit_products(ring: Block, stage: Block, phase: Block, BM: constexpr) -> Block:
    """Both products float32 [64, BM] of a stage once it is full; afterwards it may be filled again."""
    s_a, s_b, s_x, s_full = ring
    mma: constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BM, 32])
    zero = gl.zeros([64, BM], gl.float32, mma)
    hopper.mbarrier.wait(s_full.index(stage), phase)
    x_tile = s_x.index(stage).permute((1, 0))
    b_a = hopper.warpgroup_mma(s_a.index(stage), x_tile, zero, use_acc=False, is_async=True)
    b_b = hopper.warpgroup_mma(s_b.index(stage), x_tile, zero, use_acc=False, is_async=True)
    b_a, b_b = hopper.warpgroup_mma_wait(0, deps=[b_a, b_b])
    gl.thread_barrier()
    return b_a, b_b


@gluon_jit()
def turn(stage: Block, phase: Block, STAGES: constexpr) -> Block:
    """The stage behind `stage`, and the phase that its barrier ends next."""
    wraps = stage + 1 == STAGES
    return gl.where(wraps, 0, stage + 1), gl.where(wraps, phase ^ 1, phase)


@gluon_jit()
def keep(p_scales: Block, SLOTS: constexpr) -> Block:
    """The scales float32 [SLOTS] at these addresses, in shared memory, to be taken one by one."""
    flat: constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    s_scales = gl.allocate_shared_memory(gl.float32, [SLOTS], flat)
    s_scales.store(gl.load(p_scales))
    return s_scales._reinterpret(gl.float32, [SLOTS, 1], flat)


@gluon_jit()
def keep_row_scales(
    p_xs: Pointer, start: Block, stop: Block, i_m: Block, rows: Block, SLOTS: constexpr, BM: constexpr
) -> Block:
    """The rows' scales float32 [BM] of each group start..stop of K, likewise."""
    spread: constexpr = gl.BlockedLayout([1, 4], [128 // BM, BM // 4], [4, 1], [1, 0])
    s_xs = gl.allocate_shared_memory(gl.float32, [SLOTS, BM], gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))
    o_group = start + gl.arange(0, SLOTS, gl.SliceLayout(1, spread))[:, None]
    o_m = i_m + gl.arange(0, BM, gl.SliceLayout(0, spread))[None, :]
    s_xs.store(gl.load(p_xs + o_group * rows + o_m, mask=(o_group < stop) & (o_m < rows), other=0.0))
    return s_xs._reinterpret(gl.float32, [SLOTS, BM], gl.SwizzledSharedLayout(1, 1, 1, [0]))
