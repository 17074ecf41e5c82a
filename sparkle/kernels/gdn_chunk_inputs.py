"""What the chunked gated delta rule knows of each chunk without the state before it. Knows no state.

With G the running sum of log_decay in the chunk and L = tril(beta k kᵀ exp(G_i - G_j), -1): its solve
(I + L)⁻¹ diag(beta), and what its queries see of what is written, tril(q kᵀ exp(G_i - G_j)). Keys and queries
enter products as they came; their lengths and decays are float32 factors outside.
"""

from __future__ import annotations

from sparkle.kernels.jit import Block, Pointer, constexpr, jit, tl
from sparkle.kernels.unit_lower import inverse_of_64

FACTORS = 6
"""Float32 values a token: four factors, of the state that its key reads, of its query, of its key as it is
written, of the state before its chunk; G / ln 2; one over its key's length."""


# the stride stays specialised: loads are only wide where it is known to be a multiple of 16
@jit()
def gdn_solve_kernel(
    p_key: Pointer,  # [T, KEY_HEADS, DK], rows of stride stride_key
    p_log_decay: Pointer,  # float32 [T, HEADS]
    p_beta: Pointer,  # float32 [T, HEADS]
    p_bounds: Pointer,  # int64 [chunks, 2]
    p_solves: Pointer,  # bfloat16 [chunks, HEADS, C, C]
    p_factors: Pointer,  # float32 [chunks, HEADS, FACTORS, C]
    stride_key: int,
    KEY_HEADS: constexpr,
    HEADS: constexpr,
    DK: constexpr,
    C: constexpr,  # 64
    FACTORS: constexpr,
    PIECE: constexpr,  # columns of keys at a time: all of them would not fit in one warp's registers
    PRECISION: constexpr,
) -> None:
    i_head, i_chunk = tl.program_id(0), tl.program_id(1).to(tl.int64)
    start, stop = tl.load(p_bounds + 2 * i_chunk), tl.load(p_bounds + 2 * i_chunk + 1)
    if start >= stop:
        return
    i_part = i_chunk * HEADS + i_head
    p_k = p_key + i_head // (HEADS // KEY_HEADS) * DK
    o_16, o_32, o_token = tl.arange(0, 16), tl.arange(0, 32), tl.arange(0, C)
    # past the end the last row is read again, with factors of 0
    o_fours = tl.minimum(start + tl.arange(0, 4)[:, None] * 16 + o_16[None, :], stop - 1) * stride_key
    b_fours = tl.zeros((4, 16, 16), tl.float32)
    b_pairs = tl.zeros((2, 16, 16), tl.float32)
    b_half = tl.zeros((32, 32), tl.float32)
    for i_piece in range(0, DK, PIECE):
        o_k = i_piece + tl.arange(0, PIECE)
        b_k = tl.load(p_k + o_fours[:, :, None] + o_k[None, None, :])
        b_fours = tl.dot(b_k, tl.permute(b_k, (0, 2, 1)), b_fours)
        b_upper, b_lower = tl.split(tl.permute(tl.reshape(b_k, (2, 2, 16, PIECE)), (0, 2, 3, 1)))
        b_pairs = tl.dot(b_lower, tl.permute(b_upper, (0, 2, 1)), b_pairs)
        b_upper, b_lower = tl.split(tl.permute(tl.reshape(b_k, (2, 32, PIECE)), (1, 2, 0)))
        b_half = tl.dot(b_lower, tl.trans(b_upper), b_half)
    o_i, o_j = o_16[None, :, None], o_16[None, None, :]
    real = start + o_token < stop
    o_gate = tl.minimum(start + o_token, stop - 1) * HEADS + i_head
    b_g = tl.where(real, tl.load(p_log_decay + o_gate), 0.0) * 1.4426950408889634  # in powers of 2
    b_beta = tl.where(real, tl.load(p_beta + o_gate), 0.0)
    b_sum, b_all = tl.cumsum(b_g, axis=0), tl.sum(b_g, axis=0)
    b_size = tl.rsqrt(tl.sum(tl.where(o_i == o_j, b_fours, 0.0), axis=2) + 1e-6)
    b_size = tl.where(real, tl.reshape(b_size, (C,)), 0.0)
    p_factor = p_factors + i_part * FACTORS * C + o_token
    tl.store(p_factor, b_size * tl.exp2(b_sum))
    tl.store(p_factor + 2 * C, b_size * tl.exp2(b_all - b_sum))
    tl.store(p_factor + 3 * C, tl.exp2(b_all) + tl.zeros((C,), tl.float32))
    tl.store(p_factor + 4 * C, b_sum)
    tl.store(p_factor + 5 * C, b_size)
    b_row, b_sums = tl.reshape(b_beta * b_size, (4, 16)), tl.reshape(b_sum, (4, 16))
    # masked before the exponential, which could be infinite above the diagonal
    b_since = tl.where(o_i > o_j, b_sums[:, :, None] - b_sums[:, None, :], -float("inf"))
    b_fours *= b_row[:, :, None] * tl.reshape(b_size, (4, 16))[:, None, :] * tl.exp2(b_since)
    b_sum_above, b_sum_below = _pairs(b_sum)
    b_size_above, _ = _pairs(b_size)
    _, b_row = _pairs(b_beta * b_size)
    b_pairs *= b_row[:, :, None] * b_size_above[:, None, :]
    b_pairs *= tl.exp2(b_sum_below[:, :, None] - b_sum_above[:, None, :])
    b_sum_above, b_sum_below = _halves(b_sum)
    b_size_above, _ = _halves(b_size)
    _, b_row = _halves(b_beta * b_size)
    b_half *= b_row[:, None] * b_size_above[None, :] * tl.exp2(b_sum_below[:, None] - b_sum_above[None, :])
    b_upper, b_below, b_lower = inverse_of_64(b_fours, b_pairs, b_half, PRECISION)
    b_left, b_right = _halves(b_beta)
    p_solve = p_solves + i_part * C * C + o_32[:, None] * C + o_32[None, :]
    tl.store(p_solve, (b_upper * b_left[None, :]).to(tl.bfloat16))
    tl.store(p_solve + 32, tl.zeros((32, 32), tl.bfloat16))
    tl.store(p_solve + 32 * C, (b_below * b_left[None, :]).to(tl.bfloat16))
    tl.store(p_solve + 32 * C + 32, (b_lower * b_right[None, :]).to(tl.bfloat16))


@jit()
def _pairs(b_x: Block) -> tuple[Block, Block]:
    """Of [64]: the first and third 16, and the second and fourth, [2, 16] each."""
    b_above, b_below = tl.split(tl.permute(tl.reshape(b_x, (2, 2, 16)), (0, 2, 1)))
    return b_above, b_below


@jit()
def _halves(b_x: Block) -> tuple[Block, Block]:
    """[64] to [32] twice."""
    b_above, b_below = tl.split(tl.permute(tl.reshape(b_x, (2, 32)), (1, 0)))
    return b_above, b_below


# strides specialised, as above
@jit()
def gdn_mix_kernel(
    p_query: Pointer,  # [T, KEY_HEADS, DK], rows of stride stride_query
    p_key: Pointer,  # the same, stride_key
    p_bounds: Pointer,
    p_mixes: Pointer,  # bfloat16 [chunks, HEADS, C, C]
    p_factors: Pointer,
    stride_query: int,
    stride_key: int,
    KEY_HEADS: constexpr,
    HEADS: constexpr,
    DK: constexpr,
    C: constexpr,
    FACTORS: constexpr,
) -> None:
    i_key, i_half, i_chunk = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    start, stop = tl.load(p_bounds + 2 * i_chunk), tl.load(p_bounds + 2 * i_chunk + 1)
    if start >= stop:
        return
    o_token, o_k, o_half = tl.arange(0, C), tl.arange(0, DK), i_half * 32 + tl.arange(0, 32)
    o_key = tl.minimum(start + o_token, stop - 1) * stride_key
    b_k = tl.load(p_key + o_key[None, :] + i_key * DK + o_k[:, None])  # [DK, C]
    o_query = tl.minimum(start + o_half, stop - 1) * stride_query
    b_q = tl.load(p_query + o_query[:, None] + i_key * DK + o_k[None, :])  # [32, DK]
    b_wide = b_q.to(tl.float32)
    b_q_size = tl.rsqrt(tl.sum(b_wide * b_wide, axis=1) + 1e-6) * DK**-0.5
    p_factor = p_factors + (i_chunk * HEADS + i_key * (HEADS // KEY_HEADS)) * FACTORS * C
    # 32 rows: products of 64 would be warp-group instructions, see unit_lower
    b_qk = tl.dot(b_q, b_k) * b_q_size[:, None] * tl.load(p_factor + 5 * C + o_token)[None, :]
    p_mix = p_mixes + (i_chunk * HEADS + i_key * (HEADS // KEY_HEADS)) * C * C
    p_mix += o_half[:, None] * C + o_token[None, :]
    for i_head in tl.static_range(HEADS // KEY_HEADS):
        b_sum = tl.load(p_factor + 4 * C + o_half)
        b_since = b_sum[:, None] - tl.load(p_factor + 4 * C + o_token)[None, :]
        b_since = tl.where(o_half[:, None] >= o_token[None, :], b_since, -float("inf"))
        tl.store(p_mix + i_head * C * C, (b_qk * tl.exp2(b_since)).to(tl.bfloat16))
        tl.store(p_factor + C + o_half, b_q_size * tl.exp2(b_sum))
        p_factor += FACTORS * C
