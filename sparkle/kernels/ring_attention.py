"""Attention of blocks of new rows over rings of the newest keys and values, and over the block itself.

Each sequence has a ring of `window` cells, in which a position's place is its remainder, and behind it cells
for a block's own rows. A block's rows see each other, later ones too, and of the ring what is less than
`window` positions behind them. Work is split and joined as in verify_attention. Knows no layers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from sparkle.kernels.attention_join import join_parts
from sparkle.kernels.attention_parts import PROGRAMS, TILE_TOKENS, Parts
from sparkle.kernels.checks import FLOATS, require_dense, require_dtype, require_one_device, require_shape
from sparkle.kernels.jit import Pointer, constexpr, jit, tl
from sparkle.kernels.quantise import (
    GROUP,
    Fp8Rows,
    empty_rows,
    quantise_rows_reference,
    quantise_rows_triton,
)

MAX_WIDTH = 16
"""Rows of a block at most."""
PROGRAMS_PER_MULTIPROCESSOR = 2
STAGES = 2
"""Loads in flight, in tiles."""


@dataclass(frozen=True, slots=True)
class Rings:
    """S blocks of `width` rows, one after another, and what they see."""

    query: Tensor
    """float [S · width, H, D], dense."""
    keys: Tensor
    """query's dtype [slots, window + cells for a block, Hkv, D], dense; the block's own are there."""
    values: Tensor
    """The same."""
    slots: Tensor
    """int64 [S]; negative for an unused place, whose result is anything."""
    contexts: Tensor
    """int64 [S], tokens that have been in the ring: the position of the block's first row."""
    window: int
    width: int


def ring_attention(rings: Rings, *, scale: float) -> Tensor:
    """softmax(scale · q kᵀ) v over what each row sees, by the reference; head h reads kv head h // (H/Hkv).

    Returns query's shape and dtype. ValueError for a wrong shape, dtype or stride.
    """
    _check(rings)
    return ring_attention_reference(rings, scale=scale).to(rings.query.dtype)


def ring_attention_quantised(rings: Rings, *, scale: float) -> Fp8Rows:
    """ring_attention as an activation [S · width, H · D] in 1x128 e4m3, quantised from float32.

    H · D is a multiple of 128; on a GPU query is bfloat16 and D a power of two, 16 at least.
    """
    _check(rings)
    query = rings.query
    if query.shape[1] * query.shape[2] % GROUP:
        raise ValueError(
            f"query has {query.shape[1]} heads of {query.shape[2]} but they must make groups of {GROUP}"
        )
    if not query.is_cuda:
        return quantise_rows_reference(ring_attention_reference(rings, scale=scale).flatten(1))
    require_dtype("query", query, torch.bfloat16)
    return ring_attention_quantised_triton(rings, scale=scale, pdl=True)


def ring_attention_reference(rings: Rings, *, scale: float) -> Tensor:
    """The attended rows [S · width, H, D], in float32 or in a float64 query's dtype."""
    blocks, width = rings.slots.shape[0], rings.width
    dtype = torch.promote_types(rings.query.dtype, torch.float32)
    query = rings.query.to(dtype).view(blocks, width, *rings.query.shape[1:])
    group = query.shape[2] // rings.keys.shape[2]
    keys, values = (
        part[rings.slots][:, : rings.window + width].to(dtype).repeat_interleave(group, dim=2)
        for part in (rings.keys, rings.values)
    )
    scores = torch.einsum("swhd,schd->shwc", query, keys) * scale
    seen = visible(rings.contexts, window=rings.window, width=width)
    weights = scores.masked_fill(~seen[:, None], -torch.inf).softmax(dim=-1)
    # a cell that nothing was stored in may hold anything
    filled = values.masked_fill(~seen.any(dim=1)[:, :, None, None], 0.0)
    return torch.einsum("shwc,schd->swhd", weights, filled).flatten(0, 1)


def visible(contexts: Tensor, *, window: int, width: int) -> Tensor:
    """Which cells each row of a block sees: bool [S, width, window + width], the block's own last.

    contexts int64 [S] as in `Rings`. A row at position p sees the positions from p - window + 1 on.
    """
    newest = contexts[:, None] - 1
    cell = torch.arange(window, device=contexts.device)
    held = newest - (newest - cell) % window  # [S, window]: the position in each cell
    row = contexts[:, None] + torch.arange(width, device=contexts.device)
    seen = (row[:, :, None] - held[:, None, :] < window) & (held >= 0)[:, None, :]
    # no later row is out of sight: the window is no shorter than the longest block
    own = torch.ones(contexts.shape[0], width, width, dtype=torch.bool, device=contexts.device)
    return torch.cat((seen, own), dim=2)


def ring_attention_quantised_triton(rings: Rings, *, scale: float, pdl: bool) -> Fp8Rows:
    """Launches the kernels of ring_attention_quantised; `pdl`: as programmatic dependent launches."""
    rows, heads, head_dim = rings.query.shape
    if head_dim % GROUP:  # a program of the join holds no whole group
        joined = torch.empty_like(rings.query)
        if rows:
            join_parts(ring_attention_parts(rings, scale=scale, pdl=pdl), None, joined, pdl=pdl)
        return quantise_rows_triton(joined.flatten(1), pdl=pdl)
    out = empty_rows(rows, heads * head_dim, rings.query.device)
    if rows:
        join_parts(ring_attention_parts(rings, scale=scale, pdl=pdl), None, out, pdl=pdl)
    return out


def ring_attention_parts(rings: Rings, *, scale: float, pdl: bool) -> Parts:
    """Launches the first kernel: each program a run of cells of one sequence and kv head."""
    query, device = rings.query, rings.query.device
    rows, heads, head_dim = query.shape
    blocks, kv_heads = rings.slots.shape[0], rings.keys.shape[2]
    tiles = -(-(rings.window + rings.width) // TILE_TOKENS)
    splits = max(1, min(tiles, PROGRAMS_PER_MULTIPROCESSOR * PROGRAMS // (blocks * kv_heads)))
    group = heads // kv_heads
    parts = Parts(
        torch.empty(rows, heads, splits, head_dim, dtype=torch.float32, device=device),
        torch.empty(rows, heads, splits, dtype=torch.float32, device=device),
    )
    ring_attention_parts_kernel[splits, kv_heads, blocks](
        query,
        rings.keys,
        rings.values,
        rings.slots,
        rings.contexts,
        parts.values,
        parts.sums,
        rings.keys.shape[0] - 1,
        scale * math.log2(math.e),
        HEADS=heads,
        GROUP=group,
        DIM=head_dim,
        WINDOW=rings.window,
        CELLS=rings.keys.shape[1],
        WIDTH=rings.width,
        ROWS=max(16, 1 << (rings.width * group - 1).bit_length()),
        TILE=TILE_TOKENS,
        SPLITS=splits,
        PDL=pdl,
        num_warps=4,
        num_stages=STAGES,
        launch_pdl=pdl,
    )
    return parts


def _check(rings: Rings) -> None:
    query, keys, values = rings.query, rings.keys, rings.values
    require_dtype("query", query, *FLOATS)
    require_shape("query", query, None, None, None)
    require_dense("query", query)
    rows, heads, head_dim = query.shape
    for name, part in (("keys", keys), ("values", values)):
        require_dtype(name, part, query.dtype)
        require_shape(name, part, None, None, None, head_dim)
        require_dense(name, part)
    require_shape("values", values, *keys.shape)
    require_shape("slots", rings.slots, None)
    for name, numbers in (("slots", rings.slots), ("contexts", rings.contexts)):
        require_dtype(name, numbers, torch.int64)
        require_shape(name, numbers, rings.slots.shape[0])
    if not 1 <= rings.width <= MAX_WIDTH or rows != rings.width * rings.slots.shape[0]:
        raise ValueError(
            f"width is {rings.width} but must be 1 to {MAX_WIDTH} and make {rows} rows of "
            f"{rings.slots.shape[0]} blocks"
        )
    if not rings.width <= rings.window <= keys.shape[1] - rings.width:
        raise ValueError(
            f"window is {rings.window} but must be at least the {rings.width} rows of a block, "
            f"which {keys.shape[1]} cells must have room for behind it"
        )
    if heads % keys.shape[2]:
        raise ValueError(f"query has {heads} heads but they must be a multiple of the keys' {keys.shape[2]}")
    require_one_device(query=query, keys=keys, values=values, slots=rings.slots, contexts=rings.contexts)


@jit("spare")
def ring_attention_parts_kernel(
    p_query: Pointer,  # bfloat16 [S * WIDTH, HEADS, DIM]
    p_keys: Pointer,  # bfloat16 [slots, CELLS, HEADS / GROUP, DIM]
    p_values: Pointer,  # the same
    p_slots: Pointer,  # int64 [S]
    p_contexts: Pointer,  # int64 [S]
    p_parts: Pointer,  # float32 [S * WIDTH, HEADS, SPLITS, DIM]
    p_sums: Pointer,  # float32 [S * WIDTH, HEADS, SPLITS], log2 of the sum of exponentials
    spare: int,  # the slot that an unused place reads
    scale: float,
    HEADS: constexpr,
    GROUP: constexpr,
    DIM: constexpr,
    WINDOW: constexpr,
    CELLS: constexpr,
    WIDTH: constexpr,
    ROWS: constexpr,
    TILE: constexpr,
    SPLITS: constexpr,
    PDL: constexpr,
) -> None:
    i_split, i_kv, i_block = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    tiles: constexpr = (WINDOW + WIDTH + TILE - 1) // TILE
    first, last = i_split * tiles // SPLITS, (i_split + 1) * tiles // SPLITS
    o_row, o_dim = tl.arange(0, ROWS), tl.arange(0, DIM)
    o_new = o_row // GROUP  # which row of the block
    o_line = (i_block * WIDTH + o_new) * HEADS + i_kv * GROUP + o_row % GROUP
    real = o_new < WIDTH
    if PDL:
        tl.extra.cuda.gdc_wait()
    slot = tl.load(p_slots + i_block)
    slot = tl.where(slot < 0, spare, slot)
    context = tl.load(p_contexts + i_block).to(tl.int32)
    b_q = tl.load(p_query + o_line[:, None] * DIM + o_dim[None, :], mask=real[:, None], other=0.0)
    b_max = tl.full((ROWS,), -float("inf"), tl.float32)
    b_sum = tl.zeros((ROWS,), tl.float32)
    b_out = tl.zeros((ROWS, DIM), tl.float32)
    for i_tile in range(first, last):
        o_cell = i_tile * TILE + tl.arange(0, TILE)
        is_own = o_cell >= WINDOW
        # the newest position is in the cell of its remainder, the cell behind it holds the oldest
        b_held = context - 1 - (context - 1 - o_cell + WINDOW) % WINDOW
        filled = tl.where(is_own, o_cell < WINDOW + WIDTH, b_held >= 0)
        o_at = ((slot * CELLS + o_cell) * (HEADS // GROUP) + i_kv) * DIM
        b_k = tl.load(p_keys + o_at[None, :] + o_dim[:, None], mask=filled[None, :], other=0.0)  # [DIM, TILE]
        b_s = tl.dot(b_q, b_k) * scale
        seen = is_own[None, :] | (context + o_new[:, None] - b_held[None, :] < WINDOW)
        b_s = tl.where(filled[None, :] & seen, b_s, -float("inf"))
        b_top = tl.maximum(b_max, tl.max(b_s, axis=1))
        # a row may see nothing of this program's part
        b_zero = tl.where(b_top == -float("inf"), 0.0, b_top)
        b_p = tl.exp2(b_s - b_zero[:, None])
        b_keep = tl.exp2(b_max - b_zero)
        b_sum = b_sum * b_keep + tl.sum(b_p, axis=1)
        # what was never stored may be no number, which a weight of 0 does not take away
        b_v = tl.load(p_values + o_at[:, None] + o_dim[None, :], mask=filled[:, None], other=0.0)
        b_out = tl.dot(b_p.to(b_v.dtype), b_v, b_out * b_keep[:, None])
        b_max = b_top
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    b_some = b_sum > 0.0
    b_log = tl.where(b_some, b_max + tl.log2(tl.where(b_some, b_sum, 1.0)), -float("inf"))
    tl.store(p_sums + o_line * SPLITS + i_split, b_log, mask=real)
    b_out = b_out / tl.where(b_some, b_sum, 1.0)[:, None]
    p_part = p_parts + (o_line * SPLITS + i_split)[:, None] * DIM + o_dim[None, :]
    tl.store(p_part, b_out, mask=real[:, None])
