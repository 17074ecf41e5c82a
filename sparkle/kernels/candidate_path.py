"""A path through the likeliest tokens of each row, one behind the other: chosen, or drawn. Knows no model.

A row's own score of a token knows nothing of the token before it. What two neighbours are worth beside each
other is added: score(c) = value[c] + Σ_r predecessors[before, r] · own[r] · successors[c, r] (the candidate
selector of the package dflash 0.1.0). What is taken behind each candidate of the row before is found for all
of them and all rows at once, so that the walk along the rows has only to look up.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from sparkle.kernels.checks import FLOATS, require_dense, require_dtype, require_one_device, require_shape
from sparkle.kernels.jit import Block, Pointer, constexpr, jit, tl
from sparkle.kernels.launch_order import start_next_then_wait

LEAST_PADDED = 16
"""No product on the tensor cores has fewer rows."""
MOST_CANDIDATES = 32
RANK_STEP = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Draws:
    """How S drafts are drawn rather than chosen: by the numbers that the target's own tokens are drawn by.

    Where draft and target rate tokens alike, the same number makes both take the same one: more is kept than
    of the likeliest tokens, and a draft is still a function of what is known.
    """

    temperatures: Tensor  # float64 [S], 0 for the likeliest
    chances: Tensor  # float64 [S, N], from 0 to less than 1: of the position of each token of the draft


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """The K likeliest tokens of N rows of each of S drafts, and what rates them beside each other."""

    values: Tensor  # float32 [S, N, K], any strides
    ids: Tensor  # int64 [S, N, K], any strides
    own: Tensor  # float32 [S, N, R], dense rows: the weight of each product of a row's pairs
    anchors: Tensor  # int64 [S], the tokens in front of the first row
    predecessors: Tensor  # float [vocab, R], dense
    successors: Tensor  # float [vocab, R], dense


def candidate_path(candidates: Candidates, draws: Draws | None = None) -> Tensor:
    """In each row the token with the highest score behind the one taken before it: int64 [S, N].

    Of equal ones the first. With `draws` a token is drawn from softmax(score / temperature), the likeliest
    first, as the sampler draws. ValueError for another shape, dtype or stride.
    """
    _check(candidates, draws)
    if candidates.values.is_cuda and candidates.values.shape[2] <= MOST_CANDIDATES:
        return candidate_path_triton(candidates, draws, pdl=True)
    return candidate_path_reference(candidates, draws)


def candidate_path_reference(candidates: Candidates, draws: Draws | None = None) -> Tensor:
    """See candidate_path."""
    values, ids, own = candidates.values, candidates.ids, candidates.own
    successors = F.embedding(ids, candidates.successors).float() * own[:, :, None]
    first = F.embedding(candidates.anchors, candidates.predecessors).float()
    before = F.embedding(ids[:, :-1], candidates.predecessors).float()
    edges = before @ successors[:, 1:].transpose(2, 3)  # [S, N - 1, before, behind]
    chosen: list[Tensor] = []
    for row in range(ids.shape[1]):
        if chosen:
            place = chosen[-1][:, :, None].expand(-1, -1, ids.shape[2])
            edge = edges[:, row - 1].gather(1, place)[:, 0]
        else:
            edge = (successors[:, 0] @ first[:, :, None])[..., 0]
        chosen.append(_choose(values[:, row] + edge, draws, row))
    return ids.gather(2, torch.stack(chosen, dim=1))[..., 0]


def _choose(scores: Tensor, draws: Draws | None, row: int) -> Tensor:
    """Of scores [S, K] the place of one each, int64 [S, 1]."""
    if draws is None:
        return scores.argmax(dim=1, keepdim=True)
    falling, places = scores.double().sort(dim=1, descending=True, stable=True)
    temperatures, chances = draws.temperatures[:, None], draws.chances[:, row : row + 1]
    shares = ((falling - falling[:, :1]) / temperatures.clamp(min=1e-300)).exp().cumsum(dim=1)
    pick = (shares <= chances * shares[:, -1:]).sum(dim=1, keepdim=True).clamp(max=scores.shape[1] - 1)
    return places.gather(1, torch.where(temperatures > 0, pick, 0))


def candidate_path_triton(candidates: Candidates, draws: Draws | None = None, *, pdl: bool) -> Tensor:
    """Launches the kernels of candidate_path; `pdl`: as programmatic dependent launches."""
    values, ids, own = candidates.values, candidates.ids, candidates.own
    spans, rows, count = ids.shape
    padded = max(LEAST_PADDED, 1 << (count - 1).bit_length())
    behind = torch.empty(spans, rows, padded, dtype=torch.int32, device=ids.device)
    out = torch.empty(spans, rows, dtype=torch.int64, device=ids.device)
    if spans and rows:
        take_behind_each_kernel[rows, spans](
            values,
            ids,
            own,
            candidates.anchors,
            candidates.predecessors,
            candidates.successors,
            None if draws is None else draws.temperatures,
            None if draws is None else draws.chances,
            behind,
            *values.stride(),
            *ids.stride(),
            own.stride(0),
            own.stride(1),
            own.shape[2],
            COUNT=count,
            PADDED=padded,
            STEP=RANK_STEP,
            DRAWN=draws is not None,
            PDL=pdl,
            num_warps=4,
            launch_pdl=pdl,
        )
        walk_kernel[(spans,)](
            ids, behind, out, rows, *ids.stride(), PADDED=padded, PDL=pdl, num_warps=1, launch_pdl=pdl
        )
    return out


def _check(candidates: Candidates, draws: Draws | None) -> None:
    values, ids, own = candidates.values, candidates.ids, candidates.own
    require_dtype("values", values, torch.float32)
    require_shape("values", values, None, None, None)
    require_dtype("ids", ids, torch.int64)
    require_shape("ids", ids, *values.shape)
    require_dtype("own", own, torch.float32)
    require_shape("own", own, *values.shape[:2], None)
    if own.stride(2) != 1:
        raise ValueError(f"own has strides {list(own.stride())} but a row must be dense: [any, any, 1]")
    require_dtype("anchors", candidates.anchors, torch.int64)
    require_shape("anchors", candidates.anchors, values.shape[0])
    for name in ("predecessors", "successors"):
        codebook = getattr(candidates, name)
        require_dtype(name, codebook, *FLOATS)
        require_shape(name, codebook, None, own.shape[2])
        require_dense(name, codebook)
        require_one_device(ids=ids, codebook=codebook)
    require_one_device(ids=ids, values=values, own=own, anchors=candidates.anchors)
    if draws is not None:
        for name, numbers, shape in (
            ("temperatures", draws.temperatures, values.shape[:1]),
            ("chances", draws.chances, values.shape[:2]),
        ):
            require_dtype(name, numbers, torch.float64)
            require_shape(name, numbers, *shape)
            require_dense(name, numbers)
            require_one_device(ids=ids, numbers=numbers)


@jit("stride_value", "stride_id")
def take_behind_each_kernel(
    p_values: Pointer,  # float32 [S, N, COUNT], of strides stride_values_span, _row, stride_value
    p_ids: Pointer,  # int64 [S, N, COUNT], likewise
    p_own: Pointer,  # float32 [S, N, rank], of strides stride_own_span, stride_own_row, 1
    p_anchors: Pointer,  # int64 [S]
    p_predecessors: Pointer,  # float [vocab, rank]
    p_successors: Pointer,  # float [vocab, rank]
    p_temperatures: Pointer,  # float64 [S]
    p_chances: Pointer,  # float64 [S, N]
    p_behind: Pointer,  # int32 [S, N, PADDED], the place taken behind each place of the row before
    stride_values_span: int,
    stride_values_row: int,
    stride_value: int,
    stride_ids_span: int,
    stride_ids_row: int,
    stride_id: int,
    stride_own_span: int,
    stride_own_row: int,
    rank: int,
    COUNT: constexpr,
    PADDED: constexpr,
    STEP: constexpr,
    DRAWN: constexpr,
    PDL: constexpr,
) -> None:
    i_row, i_span = tl.program_id(0), tl.program_id(1)
    o_place, o_step = tl.arange(0, PADDED), tl.arange(0, STEP)
    real = o_place < COUNT
    if PDL:
        start_next_then_wait()
    p_id = p_ids + i_span * stride_ids_span + i_row * stride_ids_row + o_place * stride_id
    b_id = tl.load(p_id, mask=real, other=0)
    # in front of the first row stands one token, which then has all places
    anchor = tl.load(p_anchors + i_span)
    b_before = tl.load(p_id - stride_ids_row, mask=real & (i_row > 0), other=anchor)
    p_v = p_values + i_span * stride_values_span + i_row * stride_values_row + o_place * stride_value
    b_value = tl.load(p_v, mask=real, other=-float("inf"))
    p_weight = p_own + i_span * stride_own_span + i_row * stride_own_row
    b_scores = tl.zeros((PADDED, PADDED), tl.float32)  # before, behind
    for start in range(0, rank, STEP):
        o_rank = start + o_step
        inside = o_rank < rank
        b_own = tl.load(p_weight + o_rank, mask=inside, other=0.0)
        p_a = p_predecessors + b_before[:, None] * rank + o_rank[None, :]
        p_b = p_successors + b_id[:, None] * rank + o_rank[None, :]
        b_a = tl.load(p_a, mask=inside[None, :], other=0.0).to(tl.float32) * b_own[None, :]
        b_b = tl.load(p_b, mask=inside[None, :], other=0.0).to(tl.float32)
        # three products of 11 bits make one of float32's
        b_scores = tl.dot(b_a, tl.trans(b_b), b_scores, input_precision="tf32x3")
    b_scores += b_value[None, :]
    b_taken = tl.argmax(b_scores, axis=1)
    if DRAWN:
        temperature = tl.load(p_temperatures + i_span)
        if temperature > 0.0:
            chance = tl.load(p_chances + i_span * tl.num_programs(0) + i_row)
            b_taken = drawn_places(b_scores, temperature, chance, COUNT, PADDED)
    tl.store(p_behind + (i_span * tl.num_programs(0) + i_row) * PADDED + o_place, b_taken)


@jit()
def drawn_places(
    b_scores: Block, temperature: Block, chance: Block, COUNT: constexpr, PADDED: constexpr
) -> Block:
    """int32 [PADDED]: in each row of scores the place on which `chance` falls, the likeliest first."""
    o_place = tl.arange(0, PADDED)
    real = (o_place < COUNT)[None, :]
    b_above = (b_scores - tl.max(b_scores, axis=1)[:, None]).to(tl.float64) / temperature
    b_share = tl.where(real, tl.exp2(b_above * 1.4426950408889634), 0.0)
    # whether the last place is not behind the one in the middle, in falling order
    b_other, b_this = b_scores[:, None, :], b_scores[:, :, None]
    b_leads = (b_other > b_this) | ((b_other == b_this) & (o_place[None, None, :] <= o_place[None, :, None]))
    b_up_to = tl.sum(tl.where(b_leads, b_share[:, None, :], 0.0), axis=2)
    b_rank = tl.sum(b_leads.to(tl.int32), axis=2) - 1
    b_passed = real & (b_up_to <= chance * tl.sum(b_share, axis=1)[:, None])
    b_pick = tl.minimum(tl.sum(b_passed.to(tl.int32), axis=1), COUNT - 1)
    return tl.argmax((b_rank == b_pick[:, None]).to(tl.int32), axis=1)


@jit("rows", "stride_id")
def walk_kernel(
    p_ids: Pointer,  # int64 [S, N, ...], of strides stride_ids_span, stride_ids_row, stride_id
    p_behind: Pointer,  # int32 [S, N, PADDED]
    p_tokens: Pointer,  # int64 [S, N]
    rows: int,
    stride_ids_span: int,
    stride_ids_row: int,
    stride_id: int,
    PADDED: constexpr,
    PDL: constexpr,
) -> None:
    i_span = tl.program_id(0)
    if PDL:
        start_next_then_wait()
    p_behind += i_span * rows * PADDED
    p_ids += i_span * stride_ids_span
    place = 0
    for i_row in range(rows):
        place = tl.load(p_behind + i_row * PADDED + place)
        token = tl.load(p_ids + i_row * stride_ids_row + place * stride_id)
        tl.store(p_tokens + i_span * rows + i_row, token)
