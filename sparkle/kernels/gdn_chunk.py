"""The gated delta rule over whole prompts, 64 tokens at a time. Knows no layers.

What does not depend on the state is computed for every chunk at once, see gdn_chunk_inputs. Then a kernel
walks each sequence's chunks with a part of the state in registers, reading and correcting it. Products are of
bfloat16, sums and the state in float32.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sparkle.kernels import reference_sequence
from sparkle.kernels.checks import require_dense, require_dense_rows, require_one_device
from sparkle.kernels.chunks import CHUNK_TOKENS, cut_into_chunks
from sparkle.kernels.delta_rule_inputs import require_delta_rule
from sparkle.kernels.gdn_chunk_inputs import FACTORS, gdn_mix_kernel, gdn_solve_kernel
from sparkle.kernels.jit import Pointer, constexpr, jit, tl

BLOCK_V = 64  # rows of a warp-group product
SOLVE_WARPS, SOLVE_STAGES, SOLVE_PIECE = 1, 1, 32
PRECISION = "fp16"  # the solve is rounded to bfloat16: more bits would change nothing
MIX_WARPS = 4
SCAN_WARPS, SCAN_STAGES = 4, 3


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
    for name, rows in (("query", query), ("key", key), ("value", value)):
        require_dense_rows(name, rows)
    require_dense("log_decay", log_decay)
    require_dense("beta", beta)
    require_one_device(
        query=query,
        key=key,
        value=value,
        log_decay=log_decay,
        beta=beta,
        states=states,
        span_starts=span_starts,
        slots=slots,
    )
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

    solves, mixes = scratch(CHUNK_TOKENS, CHUNK_TOKENS), scratch(CHUNK_TOKENS, CHUNK_TOKENS)
    factors = scratch(FACTORS, CHUNK_TOKENS, of=torch.float32)
    sizes = {"KEY_HEADS": key_heads, "HEADS": heads, "DK": key_dim, "C": CHUNK_TOKENS}
    gdn_solve_kernel[heads, count](
        key,
        log_decay,
        beta,
        chunks.bounds,
        solves,
        factors,
        key.stride(0),
        **sizes,
        FACTORS=FACTORS,
        PIECE=min(SOLVE_PIECE, key_dim),
        PRECISION=PRECISION,
        num_warps=SOLVE_WARPS,
        num_stages=SOLVE_STAGES,
    )
    gdn_mix_kernel[key_heads, CHUNK_TOKENS // 32, count](
        query,
        key,
        chunks.bounds,
        mixes,
        factors,
        query.stride(0),
        key.stride(0),
        **sizes,
        FACTORS=FACTORS,
        num_warps=MIX_WARPS,
        num_stages=1,
    )
    block_v = min(BLOCK_V, value_dim)
    gdn_scan_kernel[value_dim // block_v, heads, slots.shape[0]](
        query,
        key,
        value,
        chunks.bounds,
        chunks.first,
        slots,
        solves,
        mixes,
        factors,
        states,
        out,
        query.stride(0),
        key.stride(0),
        value.stride(0),
        **sizes,
        FACTORS=FACTORS,
        DV=value_dim,
        BV=block_v,
        num_warps=SCAN_WARPS,
        num_stages=SCAN_STAGES,
    )
    return out


# strides stay specialised: loads are only wide where they are known to be multiples of 16
@jit()
def gdn_scan_kernel(
    p_query: Pointer,  # [T, KEY_HEADS, DK], rows of stride stride_query
    p_key: Pointer,  # the same, stride_key
    p_value: Pointer,  # [T, HEADS, DV], rows of stride stride_value
    p_bounds: Pointer,  # int64 [chunks, 2]
    p_first: Pointer,  # int64 [S + 1]
    p_slots: Pointer,  # int64 [S]
    p_solves: Pointer,  # bfloat16 [chunks, HEADS, C, C]
    p_mixes: Pointer,  # bfloat16 [chunks, HEADS, C, C]
    p_factors: Pointer,  # float32 [chunks, HEADS, FACTORS, C], see gdn_chunk_inputs
    p_states: Pointer,  # float32 [slots, HEADS, DK, DV]
    p_out: Pointer,  # [T, HEADS, DV]
    stride_query: int,
    stride_key: int,
    stride_value: int,
    KEY_HEADS: constexpr,
    HEADS: constexpr,
    DK: constexpr,
    DV: constexpr,
    C: constexpr,
    FACTORS: constexpr,
    BV: constexpr,
) -> None:
    i_v, i_head, i_span = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    first, last = tl.load(p_first + i_span), tl.load(p_first + i_span + 1)
    if first >= last:
        return
    row, end = tl.load(p_bounds + 2 * first), tl.load(p_bounds + 2 * last - 1)
    i_key = i_head // (HEADS // KEY_HEADS)
    o_token, o_k, o_v = tl.arange(0, C), tl.arange(0, DK), tl.arange(0, BV)
    o_square = o_token[None, :] * C + o_token[:, None]
    p_state = p_states + (tl.load(p_slots + i_span) * HEADS + i_head) * DK * DV + i_v * BV
    p_state += o_k[None, :] * DV + o_v[:, None]
    # where the first chunk's parts are; inside a chunk 32 bits are enough
    p_k = p_key + row * stride_key + i_key * DK
    p_q = p_query + row * stride_query + i_key * DK
    p_v = p_value + row * stride_value + i_head * DV + i_v * BV
    p_o = p_out + (row * HEADS + i_head) * DV + i_v * BV
    p_factor = p_factors + (first * HEADS + i_head) * FACTORS * C
    p_solve = p_solves + (first * HEADS + i_head) * C * C
    p_mix = p_mixes + (first * HEADS + i_head) * C * C
    left = (end - row).to(tl.int32)
    # everything stands on its side, values first: what one product gives the next takes from registers, and
    # the other operand was loaded. In front of operands that threads store to shared memory Triton 3.6 may
    # order memory wrongly
    b_state = tl.load(p_state)  # [BV, DK]
    for _ in range((last - first).to(tl.int32)):
        # past the end the last row is read again, with factors of 0
        o_row = tl.minimum(o_token, left - 1)
        # asked for here, long before they are needed: these two the compiler does not load ahead
        b_query_factor = tl.load(p_factor + C + o_token)
        b_decay = tl.load(p_factor + 3 * C)
        b_narrow = b_state.to(tl.bfloat16)
        b_k = tl.load(p_k + (o_row * stride_key)[:, None] + o_k[None, :])  # [C, DK]
        b_v = tl.load(p_v + (o_row * stride_value)[:, None] + o_v[None, :])  # [C, BV]
        b_read = tl.dot(b_narrow, tl.trans(b_k)) * tl.load(p_factor + o_token)[None, :]
        b_solve = tl.load(p_solve + o_square)  # [C, C], on its side too
        # the solve of v - exp(G) k S, in two products: v goes from memory to the tensor core as it stands
        b_d = tl.dot(tl.trans(b_v), b_solve)  # [BV, C]
        b_d = tl.dot((-b_read).to(tl.bfloat16), b_solve, b_d)
        b_q = tl.load(p_q + (o_row * stride_query)[None, :] + o_k[:, None])  # [DK, C]
        b_o = tl.dot(b_narrow, b_q) * b_query_factor[None, :]
        b_mix = tl.load(p_mix + o_square)
        b_o += tl.dot(b_d.to(tl.bfloat16), b_mix)
        b_d = (b_d * tl.load(p_factor + 2 * C + o_token)[None, :]).to(tl.bfloat16)
        b_state = tl.dot(b_d, b_k, b_state * b_decay)
        p_x = p_o + (o_token * (HEADS * DV))[None, :] + o_v[:, None]
        tl.store(p_x, b_o.to(p_out.dtype.element_ty), mask=(o_token < left)[None, :])
        p_k += C * stride_key
        p_q += C * stride_query
        p_v += C * stride_value
        p_o += C * HEADS * DV
        p_factor += HEADS * FACTORS * C
        p_solve += HEADS * C * C
        p_mix += HEADS * C * C
        left -= C
    tl.store(p_state, b_state)
