"""Attention over parts of an e4m3 paged cache for the H200's wide tensor core instruction. Knows no result.

As attention_parts, but what waits for what is written out (Gluon): while the tensor core takes the next
tile's scores this one's become weights, while it adds up this tile's values the next one's are converted.
Keys are multiplied as they lie in the cache; a query is the sum of two e4m3 numbers of one scale a row: a
bfloat16, but for what is below 1/200,000 of its row's largest.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sparkle.kernels.attention_parts import PROGRAMS, TILE_TOKENS, Paged, Parts, empty_parts
from sparkle.kernels.jit import Block, Pointer, constexpr, gl, gluon_jit, tl

MIN_ROWS = 64
"""The wide instruction's rows for four warps."""
HEAD_DIMS = (128, 256)


def takes(paged: Paged) -> bool:
    """Whether the kernel is made for these heads and pages."""
    narrow = paged.key_pages.dtype == torch.float8_e4m3fn
    return narrow and paged.query.shape[2] in HEAD_DIMS and paged.key_pages.shape[1] % TILE_TOKENS == 0


@dataclass(frozen=True, slots=True)
class Fp8LaunchSettings:
    """How the kernel is launched."""

    rows: int
    """Rows of the product that a program holds: new tokens times heads of one kv head, padded."""
    warps: int
    stages: int
    """Tiles of keys and values in shared memory: as many as fit."""
    programs: int = PROGRAMS
    """Programs that find a place on the chip at once: one a multiprocessor, whatever the rows."""


def fp8_launch_settings(rows: int) -> Fp8LaunchSettings:
    """The settings for so many rows: four warps for each 64."""
    if rows <= MIN_ROWS:
        return Fp8LaunchSettings(rows=MIN_ROWS, warps=4, stages=4)
    return Fp8LaunchSettings(rows=1 << (rows - 1).bit_length(), warps=8, stages=3)


def attention_parts_fp8(
    paged: Paged, *, width: int, scale: float, pdl: bool, settings: Fp8LaunchSettings | None = None
) -> Parts:
    """Launches the kernel; `settings` other than fp8_launch_settings' are for tests and benches."""
    settings = settings or fp8_launch_settings(width * paged.group)
    splits = paged.splits(settings.programs)
    # averages of e4m3 values fit float16, and its rounding is a sixteenth of the result's
    parts = empty_parts(paged, splits, torch.float16)
    attention_parts_fp8_kernel[splits, paged.kv_heads, paged.spans](
        *paged.arguments(parts, scale),
        **paged.sizes(splits),
        ROWS=settings.rows,
        STAGES=settings.stages,
        WARPS=settings.warps,
        PDL=pdl,
        num_warps=settings.warps,
        launch_pdl=pdl,
    )
    return parts


@gluon_jit()
def part_of(
    p_starts: Pointer,
    p_contexts: Pointer,
    TILE: constexpr,
    SPLITS: constexpr,
    STAGES: constexpr,
    PDL: constexpr,
) -> Block:
    """A program's first row, new tokens and old ones; its first tile, and past which tile and token it ends.

    A part of nothing ends at or before its first tile. The kernel in front writes queries and new tokens: a
    program whose first STAGES tiles are older asks for them at once, and waits before it reads its queries.
    """
    start = gl.load(p_starts + gl.program_id(2))
    tokens = (gl.load(p_starts + gl.program_id(2) + 1) - start).to(gl.int32)
    context = gl.load(p_contexts + gl.program_id(2)).to(gl.int32)
    tiles = gl.cdiv(context + tokens, TILE)
    first = gl.program_id(0) * gl.cdiv(tiles, SPLITS)
    last = gl.minimum(first + gl.cdiv(tiles, SPLITS), tiles)
    stop = gl.minimum(context + tokens, last * TILE)
    if PDL and ((gl.minimum((first + STAGES) * TILE, stop) > context) | (tokens <= 0)):
        tl.extra.cuda.gdc_wait()
    return start, tokens, context, first, last, stop


@gluon_jit()
def tile_start(p_table: Pointer, i_tile: Block, length: Block, PAGE: constexpr, TILE: constexpr) -> Block:
    """Where a tile is kept, in tokens: a tile lies within one page. Past the end, where the last one is."""
    token = gl.minimum(i_tile, (length - 1) // TILE) * TILE
    return gl.load(p_table + token // PAGE) * PAGE + token % PAGE


@gluon_jit()
def copy_tile(
    p_keys: Pointer,  # of the kv head
    p_values: Pointer,
    s_keys: Block,
    s_values: Block,
    cell: Block,
    left: Block,
    KV_HEADS: constexpr,
    WARPS: constexpr,
) -> None:
    """Starts the copy of a tile into shared memory, [TILE, DIM] each; zeros past the `left` tokens it has.

    What the pages hold there may be no number, and the weight 0 would not help.
    """
    DIM: constexpr = s_keys.shape[1]
    LAYOUT: constexpr = gl.BlockedLayout([1, 16], [512 // DIM, DIM // 16], [WARPS, 1], [1, 0])
    o_token = gl.arange(0, s_keys.shape[0], layout=gl.SliceLayout(1, LAYOUT))
    o_dim = gl.arange(0, DIM, layout=gl.SliceLayout(0, LAYOUT))
    o_cell = cell.to(gl.int64) * (KV_HEADS * DIM) + ((o_token * (KV_HEADS * DIM))[:, None] + o_dim[None, :])
    inside = (o_token < left)[:, None] & (o_dim < DIM)[None, :]
    gl.nvidia.hopper.async_copy.async_copy_global_to_shared(s_keys, p_keys + o_cell, mask=inside)
    gl.nvidia.hopper.async_copy.async_copy_global_to_shared(s_values, p_values + o_cell, mask=inside)
    gl.nvidia.hopper.async_copy.commit_group()


@gluon_jit()
def first_copies(
    p_keys: Pointer,
    p_values: Pointer,
    p_table: Pointer,
    s_keys: Block,
    s_values: Block,
    first: Block,
    stop: Block,
    KV_HEADS: constexpr,
    PAGE: constexpr,
    WARPS: constexpr,
) -> Block:
    """Starts the copies of as many tiles as find a place; returns where the next one is kept."""
    STAGES: constexpr = s_keys.shape[0]
    TILE: constexpr = s_keys.shape[1]
    cells: Block = ()
    for i in gl.static_range(STAGES + 1):  # all pages' numbers at once: each is a way to the memory and back
        cells += (tile_start(p_table, first + i, stop, PAGE, TILE),)
    for i in gl.static_range(STAGES):
        s_k, s_v = s_keys.index((first + i) % STAGES), s_values.index((first + i) % STAGES)
        copy_tile(p_keys, p_values, s_k, s_v, cells[i], stop - (first + i) * TILE, KV_HEADS, WARPS)
    return cells[STAGES]


@gluon_jit()
def split_queries(b_q: Block, s_queries: Block) -> Block:
    """Stores [ROWS, DIM] as two e4m3 numbers each; returns float32 [ROWS], what their 1 stands for.

    It is a power of two: what is left of a bfloat16 beside its nearest e4m3 number is one, too.
    """
    b_q = b_q.to(gl.float32)
    b_amax = gl.maximum(gl.max(gl.abs(b_q), axis=1), 1e-10)
    b_power = gl.floor(gl.log2(448.0 / b_amax))
    b_q = b_q * gl.exp2(b_power)[:, None]
    b_high = b_q.to(gl.float8e4nv)
    s_queries.index(0).store(b_high)
    s_queries.index(1).store((b_q - b_high.to(gl.float32)).to(gl.float8e4nv))
    return gl.exp2(-b_power)


@gluon_jit()
def start_scores(s_queries: Block, s_keys: Block, SCORES: constexpr) -> Block:
    """Starts the products of both halves of the queries with a tile of keys.

    The small ones first: the tensor core keeps some 14 bits of the largest sum so far.
    """
    ROWS: constexpr = s_queries.shape[1]
    TILE: constexpr = s_keys.shape[0]
    b_none = gl.zeros([ROWS, TILE], gl.float32, layout=SCORES)
    s_turned = s_keys.permute([1, 0])
    b_scores = gl.nvidia.hopper.warpgroup_mma(
        s_queries.index(1), s_turned, b_none, use_acc=False, is_async=True
    )
    return gl.nvidia.hopper.warpgroup_mma(s_queries.index(0), s_turned, b_scores, is_async=True)


@gluon_jit()
def wait_for_tiles(PENDING: constexpr) -> None:
    """Until all but the last PENDING tiles have come, and every store is seen by all, the tensor core too."""
    gl.nvidia.hopper.async_copy.wait_group(PENDING)
    # the fence in front of the barrier: behind it, the tensor core could read what is not yet written
    gl.nvidia.hopper.fence_async_shared()
    gl.thread_barrier()


@gluon_jit()
def weights_of(b_scores: Block, b_unit: Block, b_top: Block, b_sum: Block) -> Block:
    """exp2(score - its row's largest so far); what is kept of earlier tiles; the new largest and sum."""
    b_new = gl.maximum(b_top, gl.max(b_scores, axis=1) * b_unit)
    # a row may see nothing of this program's part
    b_zero = gl.where(b_new == -float("inf"), 0.0, b_new)
    b_weights = gl.exp2(b_scores * b_unit[:, None] - b_zero[:, None])
    b_keep = gl.exp2(b_top - b_zero)
    return b_weights, b_keep, b_new, b_sum * b_keep + gl.sum(b_weights, axis=1)


@gluon_jit()
def queries_of(
    p_query: Pointer,  # the span's first row and the kv head's first query head
    tokens: Block,
    stride_row: Block,
    stride_head: Block,
    GROUP: constexpr,
    ROWS: constexpr,
    DIM: constexpr,
    WARPS: constexpr,
) -> Block:
    """[ROWS, DIM]: row i is of new token i // GROUP and query head i % GROUP, zeros past the tokens."""
    LAYOUT: constexpr = gl.BlockedLayout([1, 8], [4, 8], [WARPS, 1], [1, 0])
    o_row = gl.arange(0, ROWS, layout=gl.SliceLayout(1, LAYOUT))
    o_dim = gl.arange(0, DIM, layout=gl.SliceLayout(0, LAYOUT))
    real = (o_row // GROUP < tokens)[:, None] & (o_dim < DIM)[None, :]
    o_line = (o_row // GROUP).to(gl.int64) * stride_row + o_row % GROUP * stride_head
    return gl.load(p_query + o_line[:, None] + o_dim[None, :], mask=real, other=0.0)


@gluon_jit()
def store_part(
    p_parts: Pointer,
    p_sums: Pointer,
    start: Block,
    tokens: Block,
    b_out: Block,
    b_top: Block,
    b_sum: Block,
    HEADS: constexpr,
    GROUP: constexpr,
    SPLITS: constexpr,
    LINES: constexpr,
) -> None:
    """Stores a program's result, normed by its own sum, and that sum."""
    RESULT: constexpr = b_out.type.layout
    i_part = (start * HEADS + gl.program_id(1) * GROUP) * SPLITS + gl.program_id(0)
    b_some = b_sum > 0.0
    b_sum = gl.where(b_some, b_sum, 1.0)
    o_row = gl.arange(0, b_sum.shape[0], layout=b_sum.type.layout)
    o_part = i_part + (o_row // GROUP * HEADS + o_row % GROUP) * SPLITS
    b_log = gl.where(b_some, b_top + gl.log2(b_sum), -float("inf"))
    gl.store(p_sums + o_part, b_log, mask=o_row // GROUP < tokens)
    b_part = b_out * gl.convert_layout(1.0 / b_sum, gl.SliceLayout(1, RESULT))[:, None]
    # whole lines a warp, by way of shared memory: as the tensor core leaves it, it would be half sectors
    b_part = gl.convert_layout(b_part.to(p_parts.dtype.element_ty), LINES)
    o_row = gl.arange(0, b_out.shape[0], layout=gl.SliceLayout(1, LINES))
    o_dim = gl.arange(0, b_out.shape[1], layout=gl.SliceLayout(0, LINES))
    o_part = i_part + (o_row // GROUP * HEADS + o_row % GROUP) * SPLITS
    real = (o_row // GROUP < tokens)[:, None] & (o_dim < b_out.shape[1])[None, :]
    gl.store(p_parts + o_part[:, None] * b_out.shape[1] + o_dim[None, :], b_part, mask=real)


@gluon_jit("max_pages")
def attention_parts_fp8_kernel(
    p_query: Pointer,  # [T, HEADS, DIM], of strides stride_row, stride_head, 1
    p_keys: Pointer,  # e4m3 [pages, PAGE, HEADS / GROUP, DIM]
    p_values: Pointer,  # the same
    p_tables: Pointer,  # int32 [S, max_pages]
    p_starts: Pointer,  # int64 [S + 1]
    p_contexts: Pointer,  # int64 [S]
    p_parts: Pointer,  # float16 [T, HEADS, SPLITS, DIM]
    p_sums: Pointer,  # float32 [T, HEADS, SPLITS], log2 of the sum of exponentials
    stride_row: int,
    stride_head: int,
    max_pages: int,
    scale: float,
    HEADS: constexpr,
    GROUP: constexpr,
    DIM: constexpr,
    PAGE: constexpr,
    ROWS: constexpr,
    TILE: constexpr,
    SPLITS: constexpr,
    STAGES: constexpr,
    WARPS: constexpr,
    PDL: constexpr,
) -> None:
    start, tokens, context, first, last, stop = part_of(p_starts, p_contexts, TILE, SPLITS, STAGES, PDL)
    if tokens <= 0:
        return
    SCORES: constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, TILE, 32])
    RESULT: constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, DIM, 16])
    LINES: constexpr = gl.BlockedLayout([1, 8], [256 // DIM, DIM // 8], [WARPS, 1], [1, 0])
    E4M3: constexpr = gl.NVMMASharedLayout(128, 8, 2)
    PLAIN: constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    s_keys = gl.allocate_shared_memory(gl.float8e4nv, [STAGES, TILE, DIM], E4M3)
    s_values = gl.allocate_shared_memory(gl.float8e4nv, [STAGES, TILE, DIM], PLAIN)
    s_wide = gl.allocate_shared_memory(gl.float16, [2, TILE, DIM], gl.NVMMASharedLayout(128, 16, 2))
    s_queries = gl.allocate_shared_memory(gl.float8e4nv, [2, ROWS, DIM], E4M3)
    p_table = p_tables + gl.program_id(2).to(gl.int64) * max_pages
    p_k, p_v = p_keys + gl.program_id(1) * DIM, p_values + gl.program_id(1) * DIM
    cell = first_copies(p_k, p_v, p_table, s_keys, s_values, first, stop, HEADS // GROUP, PAGE, WARPS)
    if PDL:
        tl.extra.cuda.gdc_wait()
    p_q = p_query + start * stride_row + gl.program_id(1) * GROUP * stride_head
    b_q = queries_of(p_q, tokens, stride_row, stride_head, GROUP, ROWS, DIM, WARPS)
    b_unit = gl.convert_layout(split_queries(b_q, s_queries) * scale, gl.SliceLayout(1, SCORES))
    b_top = gl.full([ROWS], -float("inf"), gl.float32, layout=gl.SliceLayout(1, SCORES))
    b_sum = gl.full([ROWS], 0.0, gl.float32, layout=gl.SliceLayout(1, SCORES))
    b_out = gl.zeros([ROWS, DIM], gl.float32, layout=RESULT)
    o_token = gl.arange(0, TILE, layout=gl.SliceLayout(0, SCORES))
    o_end = context + gl.arange(0, ROWS, layout=gl.SliceLayout(1, SCORES)) // GROUP
    wait_for_tiles(STAGES - 1)
    b_next = start_scores(s_queries, s_keys.index(first % STAGES), SCORES)
    s_wide.index(first % 2).store(s_values.index(first % STAGES).load(LINES).to(gl.float16))
    b_scores = gl.nvidia.hopper.warpgroup_mma_wait(0, deps=[b_next])
    for i_tile in range(first, last):
        # here are this tile's scores, its values in s_wide, and, copied, the next one's keys and values
        wait_for_tiles(STAGES - 2)
        i_late = i_tile + STAGES
        s_k, s_v = s_keys.index(i_tile % STAGES), s_values.index(i_tile % STAGES)
        copy_tile(p_k, p_v, s_k, s_v, cell, stop - i_late * TILE, HEADS // GROUP, WARPS)
        cell = tile_start(p_table, i_late + 1, stop, PAGE, TILE)
        b_next = start_scores(s_queries, s_keys.index((i_tile + 1) % STAGES), SCORES)
        seen = o_token[None, :] <= (o_end - i_tile * TILE)[:, None]
        b_scores = gl.where(seen, b_scores, -float("inf"))
        b_weights, b_keep, b_top, b_sum = weights_of(b_scores, b_unit, b_top, b_sum)
        b_left = gl.convert_layout(b_weights.to(gl.float16), gl.DotOperandLayout(0, RESULT, 2))
        b_out = b_out * gl.convert_layout(b_keep, gl.SliceLayout(1, RESULT))[:, None]
        b_out = gl.nvidia.hopper.warpgroup_mma(b_left, s_wide.index(i_tile % 2), b_out, is_async=True)
        s_wide.index((i_tile + 1) % 2).store(s_values.index((i_tile + 1) % STAGES).load(LINES).to(gl.float16))
        b_scores, b_out = gl.nvidia.hopper.warpgroup_mma_wait(0, deps=[b_next, b_out])
    gl.nvidia.hopper.async_copy.wait_group(0)
    # read again: through the loop they would not fit the registers
    start = gl.load(p_starts + gl.program_id(2))
    tokens = (gl.load(p_starts + gl.program_id(2) + 1) - start).to(gl.int32)
    store_part(p_parts, p_sums, start, tokens, b_out, b_top, b_sum, HEADS, GROUP, SPLITS, LINES)
