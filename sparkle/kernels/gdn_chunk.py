"""The gated delta rule over whole prompts, 64 tokens at a time. Knows no layers.

Two kernels. The first works on every chunk at once: it solves for what the chunk's tokens write, as a
function of the state before them. The second walks each sequence's chunks with a part of the state in
registers, reading and correcting it. Products are of bfloat16, sums and the state in float32; keys and
queries enter the products as they came, their lengths and decays as float32 factors outside.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sparkle.kernels import reference_sequence
from sparkle.kernels.checks import require_dense, require_one_device
from sparkle.kernels.chunks import CHUNK_TOKENS, cut_into_chunks
from sparkle.kernels.delta_rule_inputs import require_delta_rule
from sparkle.kernels.jit import Block, Pointer, constexpr, jit, tl
from sparkle.kernels.unit_lower import invert_64

BLOCK_V = 32
PREPARE_WARPS = 8  # with four the solve's products do not fit in the registers
SCAN_WARPS, SCAN_STAGES = 4, 2
PRECISION = "tf32x3"


def gdn_chunk(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    log_decay: Tensor,
    beta: Tensor,
    states: Tensor,
    span_starts: Tensor,
    slots: Tensor,
) -> Tensor:
    """ops.delta_rule for long spans; writes the states in place.

    With G the running sum of log_decay in a chunk, S the state before it and D the rows written to it:
    (I + tril(beta k kᵀ exp(G_i - G_j), -1)) D = beta (v - exp(G) k S); o = exp(G) q S +
    tril(q kᵀ exp(G_i - G_j)) D; S' = exp(G_last) S + (exp(G_last - G) k)ᵀ D, with q and k as delta_rule
    scales them.

    query, key float [T, Hk, K], value float [T, Hv, V], rows of any stride; log_decay, beta float32 [T, Hv];
    states float32 [slots, Hv, K, V], dense; span_starts int64 [S+1]; slots int64 [S]. On a GPU K is 16 to
    128, V 32 to 128, both powers of two, and query, key, value are bfloat16. Returns [T, Hv, V] in value's
    dtype. ValueError for any other shape or dtype.
    """
    require_delta_rule(query, key, value, log_decay, beta, states, span_starts, slots)
    require_dense("log_decay", log_decay)
    require_dense("beta", beta)
    require_one_device(query=query, key=key, value=value, log_decay=log_decay, beta=beta, states=states)
    run = gdn_chunk_triton if query.is_cuda else reference_sequence.delta_rule
    return run(query, key, value, log_decay, beta, states, span_starts, slots)


def gdn_chunk_triton(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    log_decay: Tensor,
    beta: Tensor,
    states: Tensor,
    span_starts: Tensor,
    slots: Tensor,
) -> Tensor:
    """Launches the kernels of gdn_chunk."""
    rows, heads, value_dim = value.shape
    key_heads, key_dim = query.shape[1:]
    out = torch.empty(rows, heads, value_dim, dtype=value.dtype, device=value.device)
    if rows == 0:
        return out
    chunks = cut_into_chunks(rows, span_starts)
    count = chunks.bounds.shape[0]

    def scratch(*shape: int, of: torch.dtype = torch.bfloat16) -> Tensor:
        return torch.empty(count, heads, *shape, dtype=of, device=value.device)

    reads, writes = scratch(CHUNK_TOKENS, key_dim), scratch(CHUNK_TOKENS, value_dim)
    mixes = scratch(CHUNK_TOKENS, CHUNK_TOKENS)
    factors = scratch(3, CHUNK_TOKENS, of=torch.float32)
    strides = (query.stride(0), key.stride(0), value.stride(0))
    sizes = {"KEY_HEADS": key_heads, "HEADS": heads, "DK": key_dim, "DV": value_dim, "C": CHUNK_TOKENS}
    gdn_prepare_kernel[heads, count](
        query,
        key,
        value,
        log_decay,
        beta,
        chunks.bounds,
        scratch(CHUNK_TOKENS, CHUNK_TOKENS, of=torch.float32),
        reads,
        writes,
        mixes,
        factors,
        *strides,
        **sizes,
        PRECISION=PRECISION,
        num_warps=PREPARE_WARPS,
        num_stages=1,
    )
    gdn_scan_kernel[value_dim // BLOCK_V, heads, slots.shape[0]](
        query,
        key,
        chunks.bounds,
        chunks.first,
        slots,
        reads,
        writes,
        mixes,
        factors,
        states,
        out,
        *strides[:2],
        **sizes,
        BV=BLOCK_V,
        num_warps=SCAN_WARPS,
        num_stages=SCAN_STAGES,
    )
    return out


@jit()
def inverse_length(b_x: Block, AXIS: constexpr) -> Block:
    """1 / sqrt(Σ x² + 1e-6) along an axis, float32."""
    b_wide = b_x.to(tl.float32)
    return tl.rsqrt(tl.sum(b_wide * b_wide, axis=AXIS) + 1e-6)


@jit("stride_query", "stride_key", "stride_value")
def gdn_prepare_kernel(
    p_query: Pointer,  # [T, KEY_HEADS, DK], rows of stride stride_query
    p_key: Pointer,  # the same, stride_key
    p_value: Pointer,  # [T, HEADS, DV], rows of stride stride_value
    p_log_decay: Pointer,  # float32 [T, HEADS]
    p_beta: Pointer,  # float32 [T, HEADS]
    p_bounds: Pointer,  # int64 [chunks, 2]
    p_solves: Pointer,  # float32 [chunks, HEADS, C, C]
    p_reads: Pointer,  # bfloat16 [chunks, HEADS, C, DK]: D = writes - reads S
    p_writes: Pointer,  # bfloat16 [chunks, HEADS, C, DV]
    p_mixes: Pointer,  # bfloat16 [chunks, HEADS, C, C]
    p_factors: Pointer,  # float32 [chunks, HEADS, 3, C]: of queries, of keys, of the state (the first)
    stride_query: int,
    stride_key: int,
    stride_value: int,
    KEY_HEADS: constexpr,
    HEADS: constexpr,
    DK: constexpr,
    DV: constexpr,
    C: constexpr,
    PRECISION: constexpr,
) -> None:
    i_head, i_chunk = tl.program_id(0), tl.program_id(1).to(tl.int64)
    start, stop = tl.load(p_bounds + 2 * i_chunk), tl.load(p_bounds + 2 * i_chunk + 1)
    if start >= stop:
        return
    i_key = i_head // (HEADS // KEY_HEADS)
    i_part = i_chunk * HEADS + i_head
    o_token, o_k, o_v = tl.arange(0, C), tl.arange(0, DK), tl.arange(0, DV)
    # past the end the last row is read again, with factors of 0
    real = start + o_token < stop
    o_row = tl.minimum(start + o_token, stop - 1)
    b_g = tl.where(real, tl.load(p_log_decay + o_row * HEADS + i_head), 0.0)
    b_sum = tl.cumsum(b_g, axis=0)
    b_kt = tl.load(p_key + o_row[None, :] * stride_key + i_key * DK + o_k[:, None])  # [DK, C]
    b_k_size = tl.where(real, inverse_length(b_kt, 0), 0.0)
    p_factor = p_factors + i_part * 3 * C + o_token
    tl.store(p_factor + C, b_k_size * tl.exp(tl.sum(b_g, axis=0) - b_sum))
    tl.store(p_factor + 2 * C, tl.exp(tl.sum(b_g, axis=0)) + tl.zeros((C,), tl.float32))
    p_solve = p_solves + i_part * C * C
    # 32 rows at a time: products of 64 would be warp-group instructions, see unit_lower
    for i_half in tl.static_range(C // 32):
        o_half = i_half * 32 + tl.arange(0, 32)
        o_part = tl.minimum(start + o_half, stop - 1)
        b_part = tl.sum(tl.where(o_token[None, :] <= o_half[:, None], b_g[None, :], 0.0), axis=1)
        # masked before the exponential, which could be infinite above the diagonal
        b_since = tl.where(
            o_half[:, None] >= o_token[None, :], b_part[:, None] - b_sum[None, :], -float("inf")
        )
        b_decay = tl.exp(b_since) * b_k_size[None, :]
        b_beta = tl.where(start + o_half < stop, tl.load(p_beta + o_part * HEADS + i_head), 0.0)
        b_k = tl.load(p_key + o_part[:, None] * stride_key + i_key * DK + o_k[None, :])
        b_kk = tl.dot(b_k, b_kt) * (b_beta * inverse_length(b_k, 1))[:, None] * b_decay
        o_square = o_half[:, None] * C + o_token[None, :]
        tl.store(p_solve + o_square, b_kk)
        b_q = tl.load(p_query + o_part[:, None] * stride_query + i_key * DK + o_k[None, :])
        b_q_size = inverse_length(b_q, 1) * DK**-0.5
        b_mix = tl.dot(b_q, b_kt) * b_q_size[:, None] * b_decay
        tl.store(p_mixes + i_part * C * C + o_square, b_mix.to(tl.bfloat16))
        tl.store(p_factors + i_part * 3 * C + o_half, b_q_size * tl.exp(b_part))
    tl.debug_barrier()
    invert_64(p_solve, PRECISION)
    tl.debug_barrier()
    b_beta = tl.where(real, tl.load(p_beta + o_row * HEADS + i_head), 0.0)
    b_k = tl.load(p_key + o_row[:, None] * stride_key + i_key * DK + o_k[None, :])
    b_v = tl.load(p_value + o_row[:, None] * stride_value + i_head * DV + o_v[None, :])
    for i_half in tl.static_range(C // 32):
        o_half = i_half * 32 + tl.arange(0, 32)
        b_solve = tl.load(p_solve + o_half[:, None] * C + o_token[None, :]) * b_beta[None, :]
        o_line = (i_part * C + o_half)[:, None]
        b_writes = tl.dot(b_solve.to(tl.bfloat16), b_v)
        tl.store(p_writes + o_line * DV + o_v[None, :], b_writes.to(tl.bfloat16))
        b_solve = b_solve * (b_k_size * tl.exp(b_sum))[None, :]
        b_reads = tl.dot(b_solve.to(tl.bfloat16), b_k)
        tl.store(p_reads + o_line * DK + o_k[None, :], b_reads.to(tl.bfloat16))


@jit("stride_query", "stride_key")
def gdn_scan_kernel(
    p_query: Pointer,  # as above
    p_key: Pointer,
    p_bounds: Pointer,
    p_first: Pointer,  # int64 [S + 1]
    p_slots: Pointer,  # int64 [S]
    p_reads: Pointer,
    p_writes: Pointer,
    p_mixes: Pointer,
    p_factors: Pointer,
    p_states: Pointer,  # float32 [slots, HEADS, DK, DV]
    p_out: Pointer,  # [T, HEADS, DV]
    stride_query: int,
    stride_key: int,
    KEY_HEADS: constexpr,
    HEADS: constexpr,
    DK: constexpr,
    DV: constexpr,
    C: constexpr,
    BV: constexpr,
) -> None:
    i_v, i_head, i_span = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    first, last = tl.load(p_first + i_span), tl.load(p_first + i_span + 1)
    if first >= last:
        return
    i_key = i_head // (HEADS // KEY_HEADS)
    o_token, o_k, o_v = tl.arange(0, C), tl.arange(0, DK), i_v * BV + tl.arange(0, BV)
    p_state = p_states + (tl.load(p_slots + i_span) * HEADS + i_head) * DK * DV
    p_state += o_k[None, :] * DV + o_v[:, None]
    # everything stands on its side, values first: so a product's rows are BV, and what one product gives the
    # next takes from registers
    b_state = tl.load(p_state)  # [BV, DK]
    origin = tl.load(p_bounds + 2 * first)
    end = tl.load(p_bounds + 2 * last - 1)
    for i_chunk in range(first, last):
        o_row = origin + (i_chunk - first) * C + o_token
        inside = o_row < end
        o_row = tl.minimum(o_row, end - 1)
        i_part = i_chunk * HEADS + i_head
        o_line = i_part * C + o_token
        b_narrow = b_state.to(tl.bfloat16)
        b_reads = tl.load(p_reads + o_line[None, :] * DK + o_k[:, None])  # [DK, C]
        b_d = tl.load(p_writes + o_line[None, :] * DV + o_v[:, None]).to(tl.float32)
        b_d -= tl.dot(b_narrow, b_reads)  # [BV, C]
        p_factor = p_factors + i_part * 3 * C
        b_q = tl.load(p_query + o_row[None, :] * stride_query + i_key * DK + o_k[:, None])  # [DK, C]
        b_o = tl.dot(b_narrow, b_q) * tl.load(p_factor + o_token)[None, :]
        b_mix = tl.load(p_mixes + o_line[None, :] * C + o_token[:, None])  # [C, C]
        b_o += tl.dot(b_d.to(tl.bfloat16), b_mix)
        b_k = tl.load(p_key + o_row[:, None] * stride_key + i_key * DK + o_k[None, :])  # [C, DK]
        b_d = (b_d * tl.load(p_factor + C + o_token)[None, :]).to(tl.bfloat16)
        b_state = tl.dot(b_d, b_k, b_state * tl.load(p_factor + 2 * C))
        p_o = p_out + (o_row * HEADS + i_head)[None, :] * DV + o_v[:, None]
        tl.store(p_o, b_o.to(p_out.dtype.element_ty), mask=inside[None, :])
    tl.store(p_state, b_state)
