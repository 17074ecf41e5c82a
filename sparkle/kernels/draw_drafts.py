"""Draws behind the rows of drafts, and counts what agrees, in one launch. Knows no requests."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from sparkle.kernels.checks import require_dense, require_dtype, require_shape
from sparkle.kernels.draw_rows import UNIT, RowSettings, draw_rows, finite_rows
from sparkle.kernels.jit import Block, Pointer, constexpr, jit, tl
from sparkle.kernels.largest import KEPT, largest
from sparkle.kernels.launch_order import start_next_then_wait

MAX_WIDTH = 16
WARPS = 4


def draw_drafts(
    logits: Tensor,
    settings: RowSettings,
    token_ids: Tensor,
    firsts: Tensor,
    counts: Tensor,
    *,
    width: int,
    most: int,
) -> tuple[Tensor, Tensor]:
    """The tokens drawn, int64 [T], and of each span how many of them count, int64 [S].

    logits float32 [T, vocab], rows of any stride; `settings` of the T rows, `most` as draw_rows takes it.
    `counts` int64 [S], at most `width`, rows of a span are drawn from, those from `firsts` int64 [S] on; what
    comes out of other rows is not said. The next row counts where a row draws what stands there in token_ids
    int64 [T]. A row of width 0, or one with a logit that is not finite, does not count and ends what counts.
    ValueError for another shape or dtype, or a width that is not 1 to 16.
    """
    rows = logits.shape[0]
    require_dtype("logits", logits, torch.float32)
    require_shape("token_ids", token_ids, rows)
    require_shape("firsts", firsts, None)
    require_shape("counts", counts, firsts.shape[0])
    for name, value in (("token_ids", token_ids), ("firsts", firsts), ("counts", counts)):
        require_dtype(name, value, torch.int64)
    for field in dataclasses.fields(settings):
        column = getattr(settings, field.name)
        require_shape(field.name, column, rows, 1)
        require_dtype(field.name, column, torch.float64)
        require_dense(field.name, column)
    if not 1 <= width <= MAX_WIDTH:
        raise ValueError(f"width is {width} but must be 1 to {MAX_WIDTH}")
    if logits.is_cuda and most <= KEPT[-1]:
        values, ids = largest(logits, most)
        return draw_drafts_triton(
            values, ids, logits.sum(dim=1), settings, token_ids, firsts, counts, width=width, pdl=True
        )
    return draw_drafts_reference(logits, settings, token_ids, firsts, counts, width=width, most=most)


def draw_drafts_reference(
    logits: Tensor,
    settings: RowSettings,
    token_ids: Tensor,
    firsts: Tensor,
    counts: Tensor,
    *,
    width: int,
    most: int,
) -> tuple[Tensor, Tensor]:
    """See draw_drafts."""
    tokens = draw_rows(logits, settings, most=most)
    good = finite_rows(logits) & (settings.widths[:, 0] > 0)
    places = torch.arange(width, device=tokens.device)
    rows = (firsts[:, None] + places).clamp(max=tokens.shape[0] - 1)
    stays = good[rows] & (places < counts[:, None])
    stays[:, 1:] &= tokens[rows[:, :-1]] == token_ids[rows[:, 1:]]
    return tokens, stays.long().cumprod(dim=1).sum(dim=1)


def draw_drafts_triton(
    values: Tensor,
    ids: Tensor,
    sums: Tensor,
    settings: RowSettings,
    token_ids: Tensor,
    firsts: Tensor,
    counts: Tensor,
    *,
    width: int,
    pdl: bool,
) -> tuple[Tensor, Tensor]:
    """Launches the kernel: values float32 and ids int64 [T, most] of `largest`, sums float32 [T] of the rows;
    `pdl`: as a programmatic dependent launch.
    """
    rows, most = values.shape
    spans = firsts.shape[0]
    tokens = torch.empty(rows, dtype=torch.int64, device=values.device)
    stays = torch.empty(spans, dtype=torch.int64, device=values.device)
    draw_drafts_kernel[(spans,)](
        values,
        ids,
        sums,
        settings.temperatures,
        settings.top_ps,
        settings.min_ps,
        settings.chances,
        settings.widths,
        token_ids,
        firsts,
        counts,
        tokens,
        stays,
        most,
        KEPT=next(size for size in KEPT if most <= size),
        WIDTH=MAX_WIDTH if width > 1 else 1,
        UNIT=UNIT,
        PDL=pdl,
        num_warps=WARPS,
        launch_pdl=pdl,
    )
    return tokens, stays


@jit("most")
def draw_drafts_kernel(
    p_values: Pointer,  # float32 [rows, most], falling
    p_ids: Pointer,  # int64 [rows, most]
    p_sums: Pointer,  # float32 [rows]
    p_temperatures: Pointer,  # float64 [rows], as the four that follow
    p_top_ps: Pointer,
    p_min_ps: Pointer,
    p_chances: Pointer,
    p_widths: Pointer,
    p_token_ids: Pointer,  # int64 [rows]
    p_firsts: Pointer,  # int64 [spans]
    p_counts: Pointer,  # int64 [spans]
    p_tokens: Pointer,  # int64 [rows]
    p_stays: Pointer,  # int64 [spans]
    most: int,
    KEPT: constexpr,
    WIDTH: constexpr,  # rows of a span, up to a power of two
    UNIT: constexpr,
    PDL: constexpr,
) -> None:
    i_span = tl.program_id(0)
    o_row, o_place = tl.arange(0, WIDTH), tl.arange(0, KEPT)[None, :]
    if PDL:
        start_next_then_wait()
    count = tl.load(p_counts + i_span)
    row = tl.load(p_firsts + i_span) + o_row
    inside = o_row < count
    b_temperature = tl.load(p_temperatures + row, mask=inside, other=1.0)[:, None]
    b_width = tl.load(p_widths + row, mask=inside, other=0.0)
    held = inside[:, None] & (o_place < most)
    p_place = row[:, None] * most + o_place
    b_value = tl.load(p_values + p_place, mask=held, other=0.0).to(tl.float64)
    b_id = tl.load(p_ids + p_place, mask=held, other=0)
    b_weight = tl.exp((b_value - at_place(b_value, 0, KEPT)[:, None]) / b_temperature)
    b_weight = tl.where(held & (o_place < b_width[:, None]), b_weight, 0.0)
    b_share = (b_weight * UNIT).to(tl.int64)
    b_sum = tl.cumsum(b_share, axis=1)
    b_top = tl.load(p_top_ps + row, mask=inside, other=1.0) * tl.sum(b_share, axis=1).to(tl.float64)
    b_min = tl.load(p_min_ps + row, mask=inside, other=0.0)
    kept = ((b_sum - b_share).to(tl.float64) < b_top[:, None]) & (b_weight >= b_min[:, None])
    # a broken row keeps nothing
    b_last = tl.maximum(tl.sum(kept.to(tl.int32), axis=1) - 1, 0)
    b_chance = tl.load(p_chances + row, mask=inside, other=0.0)
    b_target = b_chance * at_place(b_sum, b_last[:, None], KEPT).to(tl.float64)
    below = b_sum.to(tl.float64) <= b_target[:, None]
    b_pick = tl.minimum(tl.sum(below.to(tl.int32), axis=1), b_last)
    b_token = at_place(b_id, b_pick[:, None], KEPT)
    tl.store(p_tokens + row, b_token, mask=inside)
    b_total = tl.load(p_sums + row, mask=inside, other=0.0)
    # infinite less itself is not a number, nor is what was none before
    broken = ~((b_total - b_total == 0.0) & (b_width > 0.0))
    b_next = tl.load(p_token_ids + row + 1, mask=o_row + 1 < count, other=-1)
    differs = (b_token != b_next).to(tl.int32)
    b_ends = tl.cumsum(broken.to(tl.int32), axis=0) + tl.cumsum(differs, axis=0) - differs
    tl.store(p_stays + i_span, tl.sum((inside & (b_ends == 0)).to(tl.int64), axis=0))


@jit()
def at_place(b_row: Block, b_place: Block, KEPT: constexpr) -> Block:
    """Of each row of [rows, KEPT] the value at its place."""
    return tl.sum(tl.where(tl.arange(0, KEPT)[None, :] == b_place, b_row, 0), axis=1)
