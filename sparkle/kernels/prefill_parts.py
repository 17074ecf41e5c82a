"""What attention over a prompt moves: pages to rows, results of parts to one. Knows no products."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sparkle.kernels.jit import Pointer, constexpr, jit, tl

GATHER_ELEMENTS = 8192
JOIN_ROWS = 16
Part = tuple[Tensor, Tensor]
"""Attention over some keys: its result [H, T, D], rows and heads of any stride, and the scores' log-sum-exp,
float32 [H, T], rows dense."""


def gathered(
    key_pages: Tensor,
    value_pages: Tensor,
    page_table: Tensor,
    tokens: int,
    dtype: torch.dtype,
    *,
    room: int,
) -> tuple[Tensor, Tensor]:
    """The first `tokens` cells of a sequence: keys and values, [room, Hkv, D] in `dtype`, zeros behind them.

    Pages float or e4m3 (at scale 1) [pages, page_tokens, Hkv, D], dense; page_table int32 [P], enough pages.
    """
    page_tokens, heads, dim = key_pages.shape[1:]
    keys, values = (torch.empty(room, heads, dim, dtype=dtype, device=key_pages.device) for _ in range(2))
    for part in (keys, values):
        part[tokens:].zero_()
    if tokens > 0:
        width = heads * dim
        blocks = -(-page_tokens * width // GATHER_ELEMENTS)
        gather_kernel[-(-tokens // page_tokens), blocks](
            key_pages,
            value_pages,
            page_table,
            keys,
            values,
            tokens,
            PAGE=page_tokens * width,
            WIDTH=width,
            BLOCK=GATHER_ELEMENTS,
        )
    return keys, values


@jit("tokens")
def gather_kernel(
    p_key_pages: Pointer,  # [pages, PAGE]
    p_value_pages: Pointer,
    p_table: Pointer,  # int32 [P]
    p_keys: Pointer,  # [tokens, WIDTH]
    p_values: Pointer,
    tokens: int,
    PAGE: constexpr,
    WIDTH: constexpr,
    BLOCK: constexpr,
) -> None:
    i_page = tl.program_id(0).to(tl.int64)
    o_cell = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = (o_cell < PAGE) & (o_cell < tokens * WIDTH - i_page * PAGE)
    page = tl.load(p_table + i_page).to(tl.int64) * PAGE
    b_key = tl.load(p_key_pages + page + o_cell, mask=inside)
    b_value = tl.load(p_value_pages + page + o_cell, mask=inside)
    tl.store(p_keys + i_page * PAGE + o_cell, b_key.to(p_keys.dtype.element_ty), mask=inside)
    tl.store(p_values + i_page * PAGE + o_cell, b_value.to(p_values.dtype.element_ty), mask=inside)


def joined(parts: Sequence[Part], dtype: torch.dtype) -> Tensor:
    """What attention over all parts' keys gives, [T, H, D] in `dtype`; at least one part.

    o = o₁ e^{l₁} / (e^{l₁} + e^{l₂}) + o₂ e^{l₂} / (e^{l₁} + e^{l₂}), l = log(e^{l₁} + e^{l₂}); in float32,
    as the results in between are.
    """
    whole, *others = parts
    for place, other in enumerate(others, start=2):
        whole = joined_two(whole, other, dtype if place == len(parts) else torch.float32)
    return whole[0].transpose(0, 1).to(dtype).contiguous()


def joined_two(one: Part, other: Part, dtype: torch.dtype) -> Part:
    """Two parts as one, its result in `dtype`; heads of one row stand together."""
    heads, rows, dim = one[0].shape
    out = torch.empty(rows, heads, dim, dtype=dtype, device=one[0].device)
    log = torch.empty(heads, rows, dtype=torch.float32, device=one[0].device)
    if rows > 0:
        join_kernel[-(-rows // JOIN_ROWS), heads](
            *one,
            *other,
            out,
            log,
            rows,
            *one[0].stride()[:2],
            one[1].stride(0),
            *other[0].stride()[:2],
            other[1].stride(0),
            HEADS=heads,
            D=dim,
            ROWS=JOIN_ROWS,
        )
    return out.transpose(0, 1), log


# the results' strides stay specialised: loads are only wide where they are known to be multiples of 16
@jit("rows", "stride_one_log", "stride_other_log")
def join_kernel(
    p_one: Pointer,
    p_one_log: Pointer,  # float32 [HEADS, rows], of strides stride_one_log, 1
    p_other: Pointer,
    p_other_log: Pointer,
    p_out: Pointer,  # [rows, HEADS, D]
    p_log: Pointer,  # float32 [HEADS, rows]
    rows: int,
    stride_one_head: int,
    stride_one_row: int,
    stride_one_log: int,
    stride_other_head: int,
    stride_other_row: int,
    stride_other_log: int,
    HEADS: constexpr,
    D: constexpr,  # a power of two
    ROWS: constexpr,
) -> None:
    i_head = tl.program_id(1).to(tl.int64)
    o_row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    o_d = tl.arange(0, D)[None, :]
    inside = o_row < rows
    b_one_log = tl.load(p_one_log + i_head * stride_one_log + o_row, mask=inside, other=0.0)
    b_other_log = tl.load(p_other_log + i_head * stride_other_log + o_row, mask=inside, other=0.0)
    b_more = b_one_log - b_other_log
    b_log = tl.maximum(b_one_log, b_other_log) + tl.log(1.0 + tl.exp(-tl.abs(b_more)))
    tl.store(p_log + i_head * rows + o_row, b_log, mask=inside)
    p_x = p_one + i_head * stride_one_head + o_row[:, None] * stride_one_row + o_d
    b_out = tl.load(p_x, mask=inside[:, None], other=0.0).to(tl.float32) * tl.sigmoid(b_more)[:, None]
    p_x = p_other + i_head * stride_other_head + o_row[:, None] * stride_other_row + o_d
    b_out += tl.load(p_x, mask=inside[:, None], other=0.0).to(tl.float32) * tl.sigmoid(-b_more)[:, None]
    p_x = p_out + (o_row * HEADS + i_head)[:, None] * D + o_d
    tl.store(p_x, b_out.to(p_out.dtype.element_ty), mask=inside[:, None])
