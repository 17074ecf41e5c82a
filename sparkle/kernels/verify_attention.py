"""Attention of a few new tokens a sequence over a long paged cache: decode and verify. Knows no layers.

The time is that of reading the keys and values, so they are read once: the query heads that share a kv head
and all new tokens are the rows of one product, the cache is split among enough programs to fill the chip, and
a second kernel joins the parts by their log-sum-exp. Split count and grid follow from shapes alone, lengths
are read on the device: a captured graph serves every length.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from sparkle.kernels import reference_sequence
from sparkle.kernels.checks import (
    FLOATS,
    require_dense,
    require_dtype,
    require_one_device,
    require_shape,
    require_spans,
)
from sparkle.kernels.jit import Block, Pointer, constexpr, jit, tl

MAX_WIDTH = 16
"""New tokens of one sequence in a pass at most."""
TILE_TOKENS = 64
"""Keys a program holds at once, whatever the pass: another width would be another order of rounding."""
PROGRAMS = 132
"""One for each of the chip's multiprocessors."""
JOINED_PARTS = 8
CACHES = (*FLOATS, torch.float8_e4m3fn)
QUERIES = (*FLOATS, torch.float16)


def verify_attention(
    query: Tensor,
    key_pages: Tensor,
    value_pages: Tensor,
    page_tables: Tensor,
    span_starts: Tensor,
    contexts: Tensor,
    *,
    width: int,
    scale: float,
    gate: Tensor | None = None,
) -> Tensor:
    """softmax(scale · q kᵀ) v over a row's own sequence, times sigmoid(gate) where there is one.

    As ops.paged_attention, for spans of at most `width` <= 16 rows; the pages may be e4m3, which stands for
    its values at scale 1. query float or float16 [T, H, D], gate float [T, H, D], rows and heads of any
    stride; pages [pages, page_tokens, Hkv, D], dense; page_tables int32 [S, max_pages]; span_starts int64
    [S+1]; contexts int64 [S]. On a GPU D is a power of two, and queries of e4m3 pages are multiplied in
    float16: as such they are fastest, as bfloat16 they must be below 65,504. Rows outside the spans are
    unwritten. Returns [T, H, D] in query's dtype, bfloat16 for float16. ValueError for any other shape or
    dtype.
    """
    require_dtype("query", query, *QUERIES)
    require_shape("query", query, None, None, None)
    require_spans(span_starts, contexts=contexts)
    require_dtype("page_tables", page_tables, torch.int32)
    require_shape("page_tables", page_tables, contexts.shape[0], None)
    require_dtype("key_pages", key_pages, *CACHES)
    require_dtype("value_pages", value_pages, key_pages.dtype)
    require_shape("key_pages", key_pages, None, None, None, query.shape[2])
    require_shape("value_pages", value_pages, *key_pages.shape)
    require_dense("key_pages", key_pages)
    require_dense("value_pages", value_pages)
    if query.shape[1] % key_pages.shape[2]:
        raise ValueError(
            f"query has {query.shape[1]} heads but they must be a multiple of the pages' {key_pages.shape[2]}"
        )
    if not 1 <= width <= MAX_WIDTH:
        raise ValueError(f"width is {width} but must be 1 to {MAX_WIDTH}")
    if gate is not None:
        require_dtype("gate", gate, *FLOATS)
        require_shape("gate", gate, *query.shape)
        require_one_device(query=query, gate=gate)
    require_one_device(
        query=query,
        key_pages=key_pages,
        value_pages=value_pages,
        page_tables=page_tables,
        span_starts=span_starts,
        contexts=contexts,
    )
    run = verify_attention_triton if query.is_cuda else verify_attention_reference
    return run(
        query,
        key_pages,
        value_pages,
        page_tables,
        span_starts,
        contexts,
        width=width,
        scale=scale,
        gate=gate,
    )


def verify_attention_reference(
    query: Tensor,
    key_pages: Tensor,
    value_pages: Tensor,
    page_tables: Tensor,
    span_starts: Tensor,
    contexts: Tensor,
    *,
    width: int,
    scale: float,
    gate: Tensor | None = None,
) -> Tensor:
    """See verify_attention."""
    out = reference_sequence.paged_attention(
        query.float(),
        key_pages.float(),
        value_pages.float(),
        page_tables,
        span_starts,
        contexts,
        scale=scale,
    )
    if gate is not None:
        out = out * gate.float().sigmoid()
    return out.to(result_dtype(query))


def result_dtype(query: Tensor) -> torch.dtype:
    """float16 is for queries alone, whose size their norm bounds."""
    return torch.bfloat16 if query.dtype == torch.float16 else query.dtype


def num_splits(spans: int, kv_heads: int, max_tokens: int, *, programs: int = PROGRAMS) -> int:
    """Parts into which one sequence's cache is divided, so that there are about so many programs in all."""
    tiles = max(1, -(-max_tokens // TILE_TOKENS))
    return max(1, min(tiles, programs // max(1, spans * kv_heads)))


@dataclass(frozen=True, slots=True)
class LaunchSettings:
    """How the kernel is launched."""

    rows: int
    """Rows of the product that a program holds: new tokens times heads of one kv head, padded."""
    warps: int
    stages: int
    """Loads in flight, in tiles."""
    programs: int
    """Programs that find a place on the chip at once."""


def launch_settings(rows: int, cache: torch.dtype) -> LaunchSettings:
    """The settings for so many rows: a power of two, 16 at least; from 64 on the wide instruction serves."""
    padded = max(16, 1 << (rows - 1).bit_length())
    narrow = cache.itemsize == 1
    if padded >= 128:
        # a third tile of two bytes an element would not fit beside the queries
        return LaunchSettings(rows=padded, warps=8, stages=3 if narrow else 2, programs=PROGRAMS)
    if padded == 64:
        return LaunchSettings(rows=padded, warps=4, stages=2, programs=PROGRAMS * (2 if narrow else 1))
    return LaunchSettings(rows=padded, warps=4, stages=3, programs=2 * PROGRAMS)


def verify_attention_triton(
    query: Tensor,
    key_pages: Tensor,
    value_pages: Tensor,
    page_tables: Tensor,
    span_starts: Tensor,
    contexts: Tensor,
    *,
    width: int,
    scale: float,
    gate: Tensor | None = None,
    settings: LaunchSettings | None = None,
) -> Tensor:
    """Launches the kernels of verify_attention; `settings` other than launch_settings' are for benches."""
    rows, heads, head_dim = query.shape
    page_tokens, kv_heads = key_pages.shape[1:3]
    spans, max_pages = page_tables.shape
    group = heads // kv_heads
    out = torch.empty(rows, heads, head_dim, dtype=result_dtype(query), device=query.device)
    if rows == 0 or spans == 0:
        return out
    settings = settings or launch_settings(width * group, key_pages.dtype)
    splits = num_splits(spans, kv_heads, max_pages * page_tokens, programs=settings.programs)
    parts = torch.empty(rows, heads, splits, head_dim, dtype=torch.float32, device=query.device)
    sums = torch.empty(rows, heads, splits, dtype=torch.float32, device=query.device)
    verify_attention_kernel[splits, kv_heads, spans](
        query,
        key_pages,
        value_pages,
        page_tables,
        span_starts,
        contexts,
        parts,
        sums,
        query.stride(0),
        query.stride(1),
        max_pages,
        scale * math.log2(math.e),
        HEADS=heads,
        GROUP=group,
        DIM=head_dim,
        PAGE=page_tokens,
        ROWS=settings.rows,
        TILE=TILE_TOKENS,
        SPLITS=splits,
        num_warps=settings.warps,
        num_stages=settings.stages,
    )
    join_parts_kernel[heads, width, spans](
        parts,
        sums,
        query if gate is None else gate,
        span_starts,
        contexts,
        out,
        0 if gate is None else gate.stride(0),
        0 if gate is None else gate.stride(1),
        GATED=gate is not None,
        DIM=head_dim,
        TILE=TILE_TOKENS,
        SPLITS=splits,
        PADDED=max(JOINED_PARTS, 1 << (splits - 1).bit_length()),
        STEP=JOINED_PARTS,
        num_warps=2,
    )
    return out


@jit()
def base_of(p_table: Pointer, i_tile: Block, length: Block, PAGE: constexpr, TILE: constexpr) -> Block:
    """Where a tile's tokens are kept less their place in the tile, in tokens: one number, or one for each."""
    if PAGE % TILE == 0:
        token = tl.minimum(i_tile * TILE, length - 1)
        b_base = tl.load(p_table + token // PAGE).to(tl.int64) * PAGE + token % PAGE
    else:
        o_token = tl.minimum(i_tile * TILE + tl.arange(0, TILE), length - 1)
        b_cell = tl.load(p_table + o_token // PAGE).to(tl.int64) * PAGE + o_token % PAGE
        b_base = b_cell - tl.minimum(tl.arange(0, TILE), length - 1 - i_tile * TILE)
    return b_base


@jit()
def tiles_per_split(length: Block, TILE: constexpr, SPLITS: constexpr) -> Block:
    """How many tiles of a sequence one program reads; both kernels count so."""
    return tl.cdiv(tl.cdiv(length, TILE), SPLITS)


@jit("stride_row", "max_pages")
def verify_attention_kernel(
    p_query: Pointer,  # [T, HEADS, DIM], of strides stride_row, stride_head, 1
    p_keys: Pointer,  # [pages, PAGE, HEADS / GROUP, DIM]
    p_values: Pointer,  # the same
    p_tables: Pointer,  # int32 [S, max_pages]
    p_starts: Pointer,  # int64 [S + 1]
    p_contexts: Pointer,  # int64 [S]
    p_parts: Pointer,  # float32 [T, HEADS, SPLITS, DIM]
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
) -> None:
    i_split, i_kv, i_span = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    start = tl.load(p_starts + i_span)
    tokens = (tl.load(p_starts + i_span + 1) - start).to(tl.int32)
    context = tl.load(p_contexts + i_span).to(tl.int32)
    length = context + tokens
    first = i_split * tiles_per_split(length, TILE, SPLITS)
    last = tl.minimum(first + tiles_per_split(length, TILE, SPLITS), tl.cdiv(length, TILE))
    if (tokens <= 0) | (first >= last):
        return
    # e4m3 is exact in float16, and one instruction converts two of them; bfloat16 would take three
    wide = tl.float16 if p_keys.dtype.element_ty == tl.float8e4nv else p_keys.dtype.element_ty
    o_row, o_dim = tl.arange(0, ROWS), tl.arange(0, DIM)
    o_new = o_row // GROUP  # which new token
    o_head = i_kv * GROUP + o_row % GROUP
    real = o_new < tokens
    p_q = p_query + (start + o_new)[:, None] * stride_row + o_head[:, None] * stride_head + o_dim[None, :]
    b_q = tl.load(p_q, mask=real[:, None], other=0.0).to(wide)  # [ROWS, DIM]
    b_max = tl.full((ROWS,), -float("inf"), tl.float32)
    b_sum = tl.zeros((ROWS,), tl.float32)
    b_out = tl.zeros((ROWS, DIM), tl.float32)
    p_table = p_tables + i_span.to(tl.int64) * max_pages
    b_base = base_of(p_table, first, length, PAGE, TILE)
    for i_tile in range(first, last):
        # past the end the last token is read again: no load needs a mask, and its weight is 0
        o_token = tl.minimum(tl.arange(0, TILE), length - 1 - i_tile * TILE)
        o_line = (b_base * (HEADS // GROUP) + i_kv) * DIM + o_token * (HEADS // GROUP * DIM)
        # a tile ahead: the loads of keys and values must not wait for that of their page's number
        b_base = base_of(p_table, i_tile + 1, length, PAGE, TILE)
        b_k = tl.load(p_keys + o_line[None, :] + o_dim[:, None]).to(wide)  # [DIM, TILE]
        b_s = tl.dot(b_q, b_k) * scale
        o_end = context - i_tile * TILE + o_new  # the last token of the tile that a row sees
        b_s = tl.where(tl.arange(0, TILE)[None, :] <= o_end[:, None], b_s, -float("inf"))
        b_top = tl.maximum(b_max, tl.max(b_s, axis=1))
        # a row may see nothing of this program's part
        b_zero = tl.where(b_top == -float("inf"), 0.0, b_top)
        b_p = tl.exp2(b_s - b_zero[:, None])
        b_keep = tl.exp2(b_max - b_zero)
        b_sum = b_sum * b_keep + tl.sum(b_p, axis=1)
        b_v = tl.load(p_values + o_line[:, None] + o_dim[None, :]).to(wide)  # [TILE, DIM]
        b_out = tl.dot(b_p.to(wide), b_v, b_out * b_keep[:, None])
        b_max = b_top
    b_some = b_sum > 0.0
    o_part = ((start + o_new) * HEADS + o_head) * SPLITS + i_split
    b_log = tl.where(b_some, b_max + tl.log2(tl.where(b_some, b_sum, 1.0)), -float("inf"))
    tl.store(p_sums + o_part, b_log, mask=real)
    b_out = b_out / tl.where(b_some, b_sum, 1.0)[:, None]
    tl.store(p_parts + o_part[:, None] * DIM + o_dim[None, :], b_out, mask=real[:, None])


@jit("stride_row")
def join_parts_kernel(
    p_parts: Pointer,  # float32 [T, H, SPLITS, DIM]
    p_sums: Pointer,  # float32 [T, H, SPLITS]
    p_gate: Pointer,  # [T, H, DIM], of strides stride_row, stride_head, 1
    p_starts: Pointer,  # int64 [S + 1]
    p_contexts: Pointer,  # int64 [S]
    p_out: Pointer,  # [T, H, DIM]
    stride_row: int,
    stride_head: int,
    GATED: constexpr,
    DIM: constexpr,
    TILE: constexpr,
    SPLITS: constexpr,
    PADDED: constexpr,
    STEP: constexpr,
) -> None:
    i_head, i_new, i_span = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    i_row = tl.load(p_starts + i_span) + i_new
    stop = tl.load(p_starts + i_span + 1)
    if i_row >= stop:
        return
    length = (tl.load(p_contexts + i_span) + stop - i_row + i_new).to(tl.int32)
    # parts past these were never written
    used = tl.cdiv(tl.cdiv(length, TILE), tiles_per_split(length, TILE, SPLITS))
    o_dim = tl.arange(0, DIM)
    p_line = p_sums + (i_row * tl.num_programs(0) + i_head) * SPLITS
    p_part = p_parts + (i_row * tl.num_programs(0) + i_head) * SPLITS * DIM
    o_all = tl.arange(0, PADDED)
    b_top = tl.max(tl.load(p_line + o_all, mask=o_all < used, other=-float("inf")), axis=0)
    b_sum = 0.0
    b_out = tl.zeros((DIM,), tl.float32)
    for i_part in range(0, used, STEP):
        o_part = i_part + tl.arange(0, STEP)
        b_log = tl.load(p_line + o_part, mask=o_part < used, other=-float("inf"))
        b_weight = tl.exp2(b_log - b_top)
        o_cell = o_part[:, None] * DIM + o_dim[None, :]
        b_part = tl.load(p_part + o_cell, mask=o_part[:, None] < used, other=0.0)
        b_sum += tl.sum(b_weight, axis=0)
        b_out += tl.sum(b_part * b_weight[:, None], axis=0)
    b_out = b_out / b_sum
    if GATED:
        b_gate = tl.load(p_gate + i_row * stride_row + i_head * stride_head + o_dim).to(tl.float32)
        b_out = b_out * tl.sigmoid(b_gate)
    tl.store(p_out + (i_row * tl.num_programs(0) + i_head) * DIM + o_dim, b_out.to(p_out.dtype.element_ty))
