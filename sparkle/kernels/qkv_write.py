"""From the attention's projection to rotated queries and a filled cache, in one kernel. Knows no layers.

Each head of each row is normed, turned by its position and rounded once: queries to their own dtype, keys and
values to that of their pages. What is given are views of one product, in whatever order its columns stand.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sparkle.kernels import reference
from sparkle.kernels.checks import FLOATS, require_dense, require_dtype, require_one_device, require_shape
from sparkle.kernels.jit import Block, Pointer, constexpr, jit, tl
from sparkle.kernels.launch_order import start_next_then_wait

E4M3_MAX = 448.0
FEW_ROWS = 128


def qkv_write(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_norm: Tensor,
    key_norm: Tensor,
    table: Tensor,
    key_pages: Tensor,
    value_pages: Tensor,
    cells: Tensor,
    *,
    eps: float,
) -> Tensor:
    """Queries rotary(rms_norm(query, query_norm)); keys the same, and values as they are, into the pages.

    As ops.rms_norm, ops.rotary and ops.write_kv one after another, but rounded once; pages of e4m3 take the
    nearest value up to ±448. query float [T, H, D], H may be 0, key, value [T, Hkv, D], rows and heads of any
    stride; norms float [D]; table float32 [2, T, lanes] of ops.rotary_table; pages e4m3 or query's dtype
    [pages, page_tokens, Hkv, D], dense; cells int64 [T], page · page_tokens + place in the page, negative for
    a row that is not stored. On a GPU D is a power of two. Returns [T, H, D] in query's dtype. ValueError for
    any other shape or dtype.
    """
    require_dtype("query", query, *FLOATS)
    require_shape("query", query, None, None, None)
    rows, _, head_dim = query.shape
    for name, part in (("key", key), ("value", value)):
        require_dtype(name, part, query.dtype)
        require_shape(name, part, rows, key_pages.shape[-2], head_dim)
    for name, norm in (("query_norm", query_norm), ("key_norm", key_norm)):
        require_dtype(name, norm, *FLOATS)
        require_shape(name, norm, head_dim)
    require_dtype("table", table, torch.float32)
    require_shape("table", table, 2, rows, None)
    require_dense("table", table)
    if 2 * table.shape[-1] > head_dim:
        raise ValueError(f"table turns {2 * table.shape[-1]} dimensions but query has heads of {head_dim}")
    for name, pages in (("key_pages", key_pages), ("value_pages", value_pages)):
        require_dtype(name, pages, query.dtype, torch.float8_e4m3fn)
        require_shape(name, pages, None, None, None, head_dim)
        require_dense(name, pages)
    require_shape("value_pages", value_pages, *key_pages.shape)
    require_dtype("cells", cells, torch.int64)
    require_shape("cells", cells, rows)
    require_one_device(query=query, key=key, table=table, key_pages=key_pages, cells=cells)
    given = (query, key, value, query_norm, key_norm, table, key_pages, value_pages, cells)
    if query.is_cuda:
        return qkv_write_triton(*given, eps=eps, pdl=True)
    return qkv_write_reference(*given, eps=eps)


def qkv_write_reference(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_norm: Tensor,
    key_norm: Tensor,
    table: Tensor,
    key_pages: Tensor,
    value_pages: Tensor,
    cells: Tensor,
    *,
    eps: float,
) -> Tensor:
    """See qkv_write."""
    kept = cells >= 0
    turned = (
        reference.rotary(reference.rms_norm(x.float(), norm, eps=eps), table)
        for x, norm in ((query, query_norm), (key, key_norm))
    )
    queries, keys = turned
    for rows, pages in ((keys, key_pages), (value.float(), value_pages)):
        if pages.dtype == torch.float8_e4m3fn:
            # torch has no saturating cast, and copies bytes where it copies no e4m3
            rows = rows.clamp(-E4M3_MAX, E4M3_MAX).to(pages.dtype).view(torch.uint8)
            pages = pages.view(torch.uint8)
        pages.flatten(0, 1).index_copy_(0, cells[kept], rows[kept].to(pages.dtype))
    return queries.to(query.dtype)


def qkv_write_triton(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_norm: Tensor,
    key_norm: Tensor,
    table: Tensor,
    key_pages: Tensor,
    value_pages: Tensor,
    cells: Tensor,
    *,
    eps: float,
    pdl: bool,
) -> Tensor:
    """Launches the kernel of qkv_write; `pdl`: as a programmatic dependent launch."""
    rows, heads, head_dim = query.shape
    kv_heads = key.shape[1]
    out = torch.empty(rows, heads, head_dim, dtype=query.dtype, device=query.device)
    if rows:
        # one row a program fills the chip soonest; many rows share what they load of the norm
        block = 1 if rows <= FEW_ROWS else 4
        qkv_write_kernel[-(-rows // block), heads + 2 * kv_heads](
            query,
            key,
            value,
            query_norm,
            key_norm,
            table,
            key_pages,
            value_pages,
            cells,
            out,
            rows,
            query.stride(0),
            query.stride(1),
            key.stride(0),
            key.stride(1),
            value.stride(0),
            value.stride(1),
            eps,
            HEADS=heads,
            KV_HEADS=kv_heads,
            DIM=head_dim,
            LANES=table.shape[2],
            ROWS=block,
            PDL=pdl,
            num_warps=block,
            launch_pdl=pdl,
        )
    return out


@jit()
def turned_head(
    p_head: Pointer,
    p_norm: Pointer,
    p_table: Pointer,
    o_row: Block,
    stride_row: Block,
    rows: Block,
    eps: Block,
    DIM: constexpr,
    LANES: constexpr,
) -> Block:
    """float32 [rows in o_row, DIM]: one head of some rows, normed and turned."""
    o_dim = tl.arange(0, DIM)
    turns = o_dim < 2 * LANES
    o_other = tl.where(turns, (o_dim + LANES) % (2 * LANES), o_dim)
    p_row = p_head + o_row[:, None] * stride_row
    b_x = tl.load(p_row + o_dim[None, :]).to(tl.float32)
    b_other = tl.load(p_row + o_other[None, :]).to(tl.float32)
    b_inverse = tl.rsqrt(tl.sum(b_x * b_x, axis=1) / DIM + eps)[:, None]
    b_x = b_x * b_inverse * (1.0 + tl.load(p_norm + o_dim).to(tl.float32))[None, :]
    b_other = b_other * b_inverse * (1.0 + tl.load(p_norm + o_other).to(tl.float32))[None, :]
    p_cos = p_table + o_row[:, None] * LANES + (o_dim % LANES)[None, :]
    b_cos = tl.load(p_cos, mask=turns[None, :], other=1.0)
    b_sin = tl.load(p_cos + rows.to(tl.int64) * LANES, mask=turns[None, :], other=0.0)
    return b_x * b_cos + tl.where(o_dim < LANES, -1.0, 1.0)[None, :] * b_other * b_sin


@jit()
def stored(b_x: Block, p_pages: Pointer) -> Block:
    """The values in the pages' dtype; e4m3 saturates."""
    if p_pages.dtype.element_ty == tl.float8e4nv:
        b_x = tl.minimum(tl.maximum(b_x, -448.0), 448.0)
    return b_x.to(p_pages.dtype.element_ty)


@jit("rows")
def qkv_write_kernel(
    p_query: Pointer,  # [rows, HEADS, DIM], of strides stride_query, stride_query_head, 1
    p_key: Pointer,  # [rows, KV_HEADS, DIM], likewise
    p_value: Pointer,  # [rows, KV_HEADS, DIM], likewise
    p_query_norm: Pointer,  # [DIM]
    p_key_norm: Pointer,  # [DIM]
    p_table: Pointer,  # float32 [2, rows, LANES]
    p_keys: Pointer,  # [pages, page_tokens, KV_HEADS, DIM]
    p_values: Pointer,  # the same
    p_cells: Pointer,  # int64 [rows]
    p_out: Pointer,  # [rows, HEADS, DIM]
    rows: int,
    stride_query: int,
    stride_query_head: int,
    stride_key: int,
    stride_key_head: int,
    stride_value: int,
    stride_value_head: int,
    eps: float,
    HEADS: constexpr,
    KV_HEADS: constexpr,
    DIM: constexpr,
    LANES: constexpr,
    ROWS: constexpr,
    PDL: constexpr,
) -> None:
    if PDL:
        # attention behind it may ask for what it reads of older tokens
        start_next_then_wait()
    i_head = tl.program_id(1)
    o_all = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    inside = o_all < rows
    # past the end the last row is read again and nothing is stored
    o_row = tl.minimum(o_all, rows - 1)
    o_dim = tl.arange(0, DIM)
    if i_head < HEADS:
        p_head = p_query + i_head * stride_query_head
        b_q = turned_head(p_head, p_query_norm, p_table, o_row, stride_query, rows, eps, DIM, LANES)
        p_o = p_out + (o_row * HEADS + i_head)[:, None] * DIM + o_dim[None, :]
        tl.store(p_o, b_q.to(p_out.dtype.element_ty), mask=inside[:, None])
    else:
        cell = tl.load(p_cells + o_row)
        kept = (inside & (cell >= 0))[:, None]
        i_kv = (i_head - HEADS) % KV_HEADS
        o_page = (cell * KV_HEADS + i_kv)[:, None] * DIM + o_dim[None, :]
        if i_head < HEADS + KV_HEADS:
            p_head = p_key + i_kv * stride_key_head
            b_k = turned_head(p_head, p_key_norm, p_table, o_row, stride_key, rows, eps, DIM, LANES)
            tl.store(p_keys + o_page, stored(b_k, p_keys), mask=kept)
        else:
            p_head = p_value + i_kv * stride_value_head
            b_v = tl.load(p_head + o_row[:, None] * stride_value + o_dim[None, :]).to(tl.float32)
            tl.store(p_values + o_page, stored(b_v, p_values), mask=kept)
