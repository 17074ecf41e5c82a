"""What attention over a prompt moves: pages to rows, two parts' results to one. Knows no products."""

from __future__ import annotations

import torch
from torch import Tensor

from sparkle.kernels.jit import Pointer, constexpr, jit, tl

GATHER_ELEMENTS = 8192
JOIN_ROWS = 16
Part = tuple[Tensor, Tensor]
"""Attention over some keys: its result [H, T, D], rows and heads of any stride, and the scores' log-sum-exp,
float32 [H, T], dense."""


def gathered(
    key_pages: Tensor, value_pages: Tensor, page_table: Tensor, tokens: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """The first `tokens` cells of a sequence: keys and values, [tokens, Hkv, D] in `dtype`.

    Pages float or e4m3 (at scale 1) [pages, page_tokens, Hkv, D], dense; page_table int32 [P], enough pages.
    """
    page_tokens, heads, dim = key_pages.shape[1:]
    keys, values = (torch.empty(tokens, heads, dim, dtype=dtype, device=key_pages.device) for _ in range(2))
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


def joined(one: Part, other: Part, dtype: torch.dtype) -> Tensor:
    """What attention over both parts' keys gives, [T, H, D] in `dtype`, computed in float32.

    o = o₁ e^{l₁} / (e^{l₁} + e^{l₂}) + o₂ e^{l₂} / (e^{l₁} + e^{l₂}).
    """
    heads, rows, dim = one[0].shape
    out = torch.empty(rows, heads, dim, dtype=dtype, device=one[0].device)
    if rows > 0:
        join_kernel[-(-rows // JOIN_ROWS), heads](
            *one,
            *other,
            out,
            rows,
            *one[0].stride()[:2],
            *other[0].stride()[:2],
            HEADS=heads,
            D=dim,
            ROWS=JOIN_ROWS,
        )
    return out


# the strides stay specialised: loads are only wide where they are known to be multiples of 16
@jit("rows")
def join_kernel(
    p_one: Pointer,
    p_one_log: Pointer,  # float32 [HEADS, rows]
    p_other: Pointer,
    p_other_log: Pointer,
    p_out: Pointer,  # [rows, HEADS, D]
    rows: int,
    stride_one_head: int,
    stride_one_row: int,
    stride_other_head: int,
    stride_other_row: int,
    HEADS: constexpr,
    D: constexpr,  # a power of two
    ROWS: constexpr,
) -> None:
    i_head = tl.program_id(1).to(tl.int64)
    o_row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    o_d = tl.arange(0, D)[None, :]
    inside = o_row < rows
    b_log = tl.load(p_one_log + i_head * rows + o_row, mask=inside, other=0.0)
    b_log -= tl.load(p_other_log + i_head * rows + o_row, mask=inside, other=0.0)
    p_x = p_one + i_head * stride_one_head + o_row[:, None] * stride_one_row + o_d
    b_out = tl.load(p_x, mask=inside[:, None], other=0.0).to(tl.float32) * tl.sigmoid(b_log)[:, None]
    p_x = p_other + i_head * stride_other_head + o_row[:, None] * stride_other_row + o_d
    b_out += tl.load(p_x, mask=inside[:, None], other=0.0).to(tl.float32) * tl.sigmoid(-b_log)[:, None]
    p_x = p_out + (o_row * HEADS + i_head)[:, None] * D + o_d
    tl.store(p_x, b_out.to(p_out.dtype.element_ty), mask=inside[:, None])
