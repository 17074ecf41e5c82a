"""Attention over parts of a paged cache, in whatever dtype it is kept: one program a part. Knows no result.

Keys and values are read once: the query heads that share a kv head and all new tokens are the rows of one
product. attention_join makes one result of the parts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from sparkle.kernels.jit import Block, Pointer, constexpr, jit, tl

TILE_TOKENS = 64
"""Keys a program holds at once, whatever the pass: another width would be another order of rounding."""
PROGRAMS = 132
"""One for each of the chip's multiprocessors."""


@dataclass(frozen=True, slots=True)
class Paged:
    """What attention of a few new tokens is given, but the width: see verify_attention."""

    query: Tensor
    key_pages: Tensor
    value_pages: Tensor
    page_tables: Tensor
    span_starts: Tensor
    contexts: Tensor

    @property
    def spans(self) -> int:
        """Sequences."""
        return self.page_tables.shape[0]

    @property
    def kv_heads(self) -> int:
        """Heads of the keys and values."""
        return self.key_pages.shape[2]

    @property
    def group(self) -> int:
        """Query heads that share one kv head."""
        return self.query.shape[1] // self.kv_heads

    def splits(self, programs: int) -> int:
        """As num_splits, for sequences as long as their page tables allow."""
        max_tokens = self.page_tables.shape[1] * self.key_pages.shape[1]
        return num_splits(self.spans, self.kv_heads, max_tokens, programs=programs)

    def arguments(self, parts: Parts, scale: float) -> tuple[object, ...]:
        """What both kernels take, in order: tensors, strides, the scale of scores in powers of 2."""
        return (
            self.query,
            self.key_pages,
            self.value_pages,
            self.page_tables,
            self.span_starts,
            self.contexts,
            parts.values,
            parts.sums,
            self.query.stride(0),
            self.query.stride(1),
            self.page_tables.shape[1],
            scale * math.log2(math.e),
        )

    def sizes(self, splits: int) -> dict[str, int]:
        """The constants that both kernels take."""
        return {
            "HEADS": self.query.shape[1],
            "GROUP": self.group,
            "DIM": self.query.shape[2],
            "PAGE": self.key_pages.shape[1],
            "TILE": TILE_TOKENS,
            "SPLITS": splits,
        }


@dataclass(frozen=True, slots=True)
class Parts:
    """Results of the parts, each normed by its own sum. Rows of no span have none."""

    values: Tensor
    """float32 or float16 [T, H, splits, D]."""
    sums: Tensor
    """float32 [T, H, splits]: log2 of the sum of exponentials, -inf where a row sees nothing of the part."""


def empty_parts(paged: Paged, splits: int, dtype: torch.dtype) -> Parts:
    """Unwritten memory for so many parts."""
    rows, heads, head_dim = paged.query.shape
    device = paged.query.device
    return Parts(
        torch.empty(rows, heads, splits, head_dim, dtype=dtype, device=device),
        torch.empty(rows, heads, splits, dtype=torch.float32, device=device),
    )


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


def attention_parts(
    paged: Paged, *, width: int, scale: float, pdl: bool, settings: LaunchSettings | None = None
) -> Parts:
    """Launches the kernel; `settings` other than launch_settings' are for benches."""
    settings = settings or launch_settings(width * paged.group, paged.key_pages.dtype)
    splits = paged.splits(settings.programs)
    parts = empty_parts(paged, splits, torch.float32)
    parts.sums.fill_(-math.inf)  # programs past a sequence's end write nothing
    attention_parts_kernel[splits, paged.kv_heads, paged.spans](
        *paged.arguments(parts, scale),
        **paged.sizes(splits),
        ROWS=settings.rows,
        PDL=pdl,
        num_warps=settings.warps,
        num_stages=settings.stages,
        launch_pdl=pdl,
    )
    return parts


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


@jit("max_pages")
def attention_parts_kernel(
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
    PDL: constexpr,
) -> None:
    i_split, i_kv, i_span = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    if PDL:
        tl.extra.cuda.gdc_wait()
    start = tl.load(p_starts + i_span)
    tokens = (tl.load(p_starts + i_span + 1) - start).to(tl.int32)
    context = tl.load(p_contexts + i_span).to(tl.int32)
    length = context + tokens
    tiles = tl.cdiv(length, TILE)
    first = i_split * tl.cdiv(tiles, SPLITS)
    last = tl.minimum(first + tl.cdiv(tiles, SPLITS), tiles)
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
