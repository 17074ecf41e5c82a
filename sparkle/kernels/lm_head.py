"""The output product over the vocabulary in FP8: the greedy choice without writing logits, or the logits.

Knows no sampling beyond the largest logit.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sparkle.kernels.fp8_linear import block_product, fp8_linear, fp8_linear_reference
from sparkle.kernels.jit import Pointer, constexpr, jit, tl
from sparkle.kernels.launch_order import fetch_weights_then_wait, start_next_then_wait
from sparkle.kernels.quantise import Fp8Blocks, Fp8Rows, require_factors
from sparkle.kernels.tuning import LinearSettings, block_rows, linear_settings

TILES_PER_PROGRAM = 2048


def lm_head_logits(x: Fp8Rows, w: Fp8Blocks, *, vocabulary: int) -> Tensor:
    """float32 [M, vocabulary]: x · wᵀ for the first `vocabulary` rows of w [N, K], the rest is padding."""
    _check(x, w, vocabulary)
    return fp8_linear(x, w, dtype=torch.float32)[:, :vocabulary]


def lm_head_greedy(x: Fp8Rows, w: Fp8Blocks, *, vocabulary: int) -> tuple[Tensor, Tensor]:
    """The largest logit of each row: (token int64 [M], logit float32 [M]); of equal ones the lowest token.

    x [M, K], w [N, K]; only the first `vocabulary` rows of w are tokens, the rest is padding.
    """
    _check(x, w, vocabulary)
    if x.values.is_cuda:
        columns, depth = w.values.shape
        settings = linear_settings(columns, depth, rows=x.values.shape[0])
        return lm_head_greedy_triton(x, w, vocabulary=vocabulary, settings=settings, pdl=True)
    return lm_head_greedy_reference(x, w, vocabulary=vocabulary)


def lm_head_greedy_reference(x: Fp8Rows, w: Fp8Blocks, *, vocabulary: int) -> tuple[Tensor, Tensor]:
    """See lm_head_greedy."""
    logits = fp8_linear_reference(x, w, dtype=torch.float32)[:, :vocabulary]
    best = logits.amax(dim=-1)
    # argmax promises no order among equals; the first of the equal ones is the formula
    return (logits == best[:, None]).to(torch.int8).argmax(dim=-1), best


def lm_head_greedy_triton(
    x: Fp8Rows, w: Fp8Blocks, *, vocabulary: int, settings: LinearSettings, pdl: bool
) -> tuple[Tensor, Tensor]:
    """Launches the kernels of lm_head_greedy; `pdl`: as programmatic dependent launches."""
    rows, depth, device = x.values.shape[0], w.values.shape[1], x.values.device
    tiles = -(-vocabulary // settings.block_columns)
    tile_logits = torch.empty(rows, tiles, dtype=torch.float32, device=device)
    tile_tokens = torch.empty(rows, tiles, dtype=torch.int32, device=device)
    tokens = torch.empty(rows, dtype=torch.int64, device=device)
    logits = torch.empty(rows, dtype=torch.float32, device=device)
    if rows:
        width = block_rows(rows)
        largest_of_tile_kernel[-(-rows // width), tiles](
            x.values,
            x.scales,
            w.values,
            w.scales,
            tile_logits,
            tile_tokens,
            rows,
            vocabulary,
            depth,
            tiles,
            BN=settings.block_columns,
            BM=width,
            FETCH=settings.fetch,
            PDL=pdl,
            num_warps=settings.warps,
            num_stages=settings.stages,
            launch_pdl=pdl,
        )
        largest_of_row_kernel[(rows,)](
            tile_logits,
            tile_tokens,
            tokens,
            logits,
            tiles,
            TILES=TILES_PER_PROGRAM,
            PDL=pdl,
            num_warps=8,
            launch_pdl=pdl,
        )
    return tokens, logits


def _check(x: Fp8Rows, w: Fp8Blocks, vocabulary: int) -> None:
    require_factors(x, w)
    if not 1 <= vocabulary <= w.values.shape[0]:
        raise ValueError(f"vocabulary is {vocabulary} but w has {w.values.shape[0]} rows")


@jit("rows", "vocabulary", "tiles")
def largest_of_tile_kernel(
    p_x: Pointer,  # e4m3 [rows, depth]
    p_xs: Pointer,  # float32 [depth / 128, rows]
    p_w: Pointer,  # e4m3 [at least vocabulary, depth]
    p_ws: Pointer,  # float32 [ceil(vocabulary / 128), depth / 128]
    p_logits: Pointer,  # float32 [rows, tiles]
    p_tokens: Pointer,  # int32 [rows, tiles]
    rows: int,
    vocabulary: int,
    depth: int,
    tiles: int,
    BN: constexpr,
    BM: constexpr,
    FETCH: constexpr,
    PDL: constexpr,
) -> None:
    i_m, i_n = tl.program_id(0), tl.program_id(1)
    if PDL:
        o_w = tl.minimum(i_n * BN + tl.arange(0, BN), vocabulary - 1).to(tl.int64)
        fetch_weights_then_wait(p_w, o_w, 0, depth, FETCH)
    b_y = block_product(p_x, p_xs, p_w, p_ws, i_n, i_m, rows, vocabulary, depth, 0, depth // 128, BN, BM)
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    o_n = i_n * BN + tl.arange(0, BN)
    o_m = i_m * BM + tl.arange(0, BM)
    b_y = tl.where(o_n[:, None] < vocabulary, b_y, float("-inf"))
    b_best, b_place = tl.max(b_y, axis=0, return_indices=True)
    tl.store(p_logits + o_m * tiles + i_n, b_best, mask=o_m < rows)
    tl.store(p_tokens + o_m * tiles + i_n, i_n * BN + b_place, mask=o_m < rows)


@jit("tiles")
def largest_of_row_kernel(
    p_logits: Pointer,  # float32 [rows, tiles]
    p_tokens: Pointer,  # int32 [rows, tiles]
    p_token: Pointer,  # int64 [rows]
    p_logit: Pointer,  # float32 [rows]
    tiles: int,
    TILES: constexpr,
    PDL: constexpr,
) -> None:
    i_row = tl.program_id(0)
    if PDL:
        start_next_then_wait()
    best = float("-inf")
    token = tl.full((), 0, tl.int32)
    for start in range(0, tiles, TILES):
        o = start + tl.arange(0, TILES)
        b_logits = tl.load(p_logits + i_row * tiles + o, mask=o < tiles, other=float("-inf"))
        chunk_best, place = tl.max(b_logits, axis=0, return_indices=True)
        # tiles come in the order of tokens, so only a larger logit moves the choice
        chunk_token = tl.load(p_tokens + i_row * tiles + start + place)
        token = tl.where(chunk_best > best, chunk_token, token)
        best = tl.maximum(best, chunk_best)
    tl.store(p_token + i_row, token.to(tl.int64))
    tl.store(p_logit + i_row, best)
