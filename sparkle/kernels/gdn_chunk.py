"""The gated delta rule over whole prompts, 64 tokens at a time. Knows no layers.

What does not depend on the state is computed for every chunk at once, see gdn_chunk_inputs. Then a kernel
walks each sequence's chunks with a part of the state in registers, reading and correcting it. Products are of
bfloat16, sums and the state in float32.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sparkle.kernels import reference_sequence
from sparkle.kernels.checks import require_dense, require_one_device
from sparkle.kernels.chunks import CHUNK_TOKENS, cut_into_chunks
from sparkle.kernels.delta_rule_inputs import require_delta_rule
from sparkle.kernels.gdn_chunk_inputs import FACTORS, gdn_mix_kernel, gdn_solve_kernel
from sparkle.kernels.jit import Pointer, constexpr, jit, tl

BLOCK_V = 64  # rows of a warp-group product
SOLVE_WARPS, SOLVE_PIECE = 1, 32
PRECISION = "tf32"  # the solve is rounded to bfloat16: three parts would change nothing
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
        PIECE=SOLVE_PIECE,
        PRECISION=PRECISION,
        num_warps=SOLVE_WARPS,
        num_stages=1,
    )
    gdn_mix_kernel[key_heads, CHUNK_TOKENS // 32, count](
        query,
        key,
        log_decay,
        chunks.bounds,
        mixes,
        factors,
        query.stride(0),
        key.stride(0),
        **sizes,
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
    p_factors: Pointer,  # float32 [chunks, HEADS, 4, C], see gdn_chunk_inputs
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
    # everything stands on its side, values first: what one product gives the next takes from registers, and
    # the other operand was loaded. In front of operands that threads store to shared memory Triton
    # 3.6 may order memory wrongly
    b_state = tl.load(p_state)  # [BV, DK]
    origin = tl.load(p_bounds + 2 * first)
    end = tl.load(p_bounds + 2 * last - 1)
    for i_chunk in range(first, last):
        o_row = origin + (i_chunk - first) * C + o_token
        inside = o_row < end
        o_row = tl.minimum(o_row, end - 1)
        i_part = i_chunk * HEADS + i_head
        p_factor = p_factors + i_part * 4 * C
        o_square = i_part * C * C + o_token[None, :] * C + o_token[:, None]
        # asked for here, long before they are needed: these two the compiler does not load ahead
        b_query_factor = tl.load(p_factor + C + o_token)
        b_decay = tl.load(p_factor + 3 * C)
        b_narrow = b_state.to(tl.bfloat16)
        b_k = tl.load(p_key + o_row[:, None] * stride_key + i_key * DK + o_k[None, :])  # [C, DK]
        b_v = tl.trans(
            tl.load(p_value + o_row[:, None] * stride_value + i_head * DV + o_v[None, :])
        )  # [BV, C]
        b_read = tl.dot(b_narrow, tl.trans(b_k)) * tl.load(p_factor + o_token)[None, :]
        b_solve = tl.load(p_solves + o_square)  # [C, C], on its side too
        b_d = tl.dot((b_v.to(tl.float32) - b_read).to(tl.bfloat16), b_solve)  # [BV, C]
        b_q = tl.load(p_query + o_row[None, :] * stride_query + i_key * DK + o_k[:, None])  # [DK, C]
        b_o = tl.dot(b_narrow, b_q) * b_query_factor[None, :]
        b_mix = tl.load(p_mixes + o_square)
        b_o += tl.dot(b_d.to(tl.bfloat16), b_mix)
        b_d = (b_d * tl.load(p_factor + 2 * C + o_token)[None, :]).to(tl.bfloat16)
        b_state = tl.dot(b_d, b_k, b_state * b_decay)
        p_o = p_out + (o_row * HEADS + i_head)[None, :] * DV + o_v[:, None]
        tl.store(p_o, b_o.to(p_out.dtype.element_ty), mask=inside[None, :])
    tl.store(p_state, b_state)
