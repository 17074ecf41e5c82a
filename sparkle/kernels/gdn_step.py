"""Gated DeltaNet for a few new tokens a sequence, drafts among them, with lazy replay. Knows no layers.

A pass cannot know which of its tokens will be accepted. So it leaves the state as it was before them and
keeps what they would have written in a window; the next pass first folds in the tokens accepted meanwhile.
The state is read once and written once a pass, whatever the width, and a rejected draft leaves no trace. An
empty span only folds in. Two kernels: one owns channels and makes queries, keys, values and gates, one owns
parts of the state.
"""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from sparkle.kernels.checks import FLOATS, require_dtype, require_one_device, require_shape, require_spans
from sparkle.kernels.gdn_inputs import gdn_inputs_triton
from sparkle.kernels.gdn_memory import TAPS, WINDOW, GdnGates, GdnMemory
from sparkle.kernels.jit import Pointer, constexpr, jit, tl
from sparkle.kernels.unit_lower import inverse_of_16

BLOCK_V, BLOCK_K = 64, 32
WARPS = 4
PRECISION = "tf32x3"  # of what enters the state: as float32
READ_PRECISION = "tf32"  # of what is rounded to bfloat16 at the end


def gdn_step(
    qkv: Tensor,
    ba: Tensor,
    conv: Tensor,
    gates: GdnGates,
    memory: GdnMemory,
    span_starts: Tensor,
    slots: Tensor,
    accepted: Tensor,
) -> Tensor:
    """Fold in the accepted tokens of each sequence's last window, then read its new ones.

    c_t = SiLU(Σ_i conv[:, i] qkv_{t-3+i}), split into q, k, v; q ← q/|q| · K^-0.5, k ← k/|k|, where |x| is
    sqrt(Σ x² + 1e-6); b, a = ba; beta = sigmoid(b), g = -exp(a_log) softplus(a + dt_bias); then per value
    head, with the q and k of head h // (Hv/Hk): S ← exp(g) S; S ← S + k (beta (v - Sᵀk))ᵀ; o = Sᵀq ("Gated
    Delta Networks", Yang et al. 2024).

    qkv float [T, C], rows of any stride; ba float [T, 2 Hv]; conv float [C, TAPS]; span_starts int64 [S+1],
    spans of at most WINDOW rows; slots int64 [S], all different, negative where a place of the batch is
    unused; accepted int64 [S], 0 to the length of the slot's last span, 0 for a sequence that had none. On a
    GPU K and V are one power of two from 32 to 128. Returns [T, Hv, V] in qkv's dtype; `memory` is written in
    place. ValueError for any other shape or dtype.
    """
    memory.check()
    value_heads = memory.states.shape[1]
    require_dtype("qkv", qkv, *FLOATS)
    require_dtype("qkv", qkv, memory.columns.dtype)
    require_shape("qkv", qkv, None, memory.channels)
    require_dtype("ba", ba, *FLOATS)
    require_shape("ba", ba, qkv.shape[0], 2 * value_heads)
    require_dtype("conv", conv, *FLOATS)
    require_shape("conv", conv, memory.channels, TAPS)
    require_shape("a_log", gates.a_log, value_heads)
    require_shape("dt_bias", gates.dt_bias, value_heads)
    require_spans(span_starts, slots=slots, accepted=accepted)
    require_one_device(qkv=qkv, ba=ba, conv=conv, states=memory.states, span_starts=span_starts, slots=slots)
    run = gdn_step_triton if qkv.is_cuda else gdn_step_reference
    return run(qkv, ba, conv, gates, memory, span_starts, slots, accepted)


def gdn_step_reference(
    qkv: Tensor,
    ba: Tensor,
    conv: Tensor,
    gates: GdnGates,
    memory: GdnMemory,
    span_starts: Tensor,
    slots: Tensor,
    accepted: Tensor,
) -> Tensor:
    """See gdn_step."""
    key_heads, key_dim = memory.keys.shape[2:]
    value_heads, value_dim = memory.writes.shape[2:]
    out = torch.empty(qkv.shape[0], value_heads, value_dim, dtype=qkv.dtype, device=qkv.device)
    b, a = ba.float().chunk(2, dim=1)
    beta, log_decay = b.sigmoid(), -gates.a_log.float().exp() * F.softplus(a + gates.dt_bias.float())
    starts, numbers, counts = ([int(value) for value in part] for part in (span_starts, slots, accepted))
    for (start, stop), slot, kept in zip(pairwise(starts), numbers, counts, strict=True):
        if slot < 0:
            continue
        state, columns = memory.states[slot], memory.columns[slot]
        columns.copy_(torch.cat((columns, memory.inputs[slot, :kept]))[kept:].clone())
        for token in range(kept):
            _write(
                state, memory.keys[slot, token], memory.log_decays[slot, token], memory.writes[slot, token]
            )
        new, rows = stop - start, slice(start, stop)
        padded = torch.cat((columns, qkv[rows])).float()
        mixed = sum((conv[:, tap].float() * padded[tap : tap + new] for tap in range(TAPS)), torch.zeros(()))
        read = F.silu(mixed).to(qkv.dtype).float()
        q, k, v = read.split_with_sizes(
            (key_heads * key_dim, key_heads * key_dim, value_heads * value_dim), 1
        )
        q, k = (_unit(part.reshape(new, key_heads, key_dim)) for part in (q, k))
        v = v.reshape(new, value_heads, value_dim)
        memory.inputs[slot, :new], memory.keys[slot, :new] = qkv[rows], k
        memory.log_decays[slot, :new] = log_decay[rows]
        draft = state.clone()
        for token in range(new):
            decayed = draft * log_decay[start + token].exp()[:, None, None]
            change = beta[start + token][:, None] * (v[token] - _read(decayed, k[token]))
            memory.writes[slot, token] = change
            _write(draft, k[token], log_decay[start + token], change)
            out[start + token] = (_read(draft, q[token]) * key_dim**-0.5).to(out.dtype)
    return out


def _unit(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().sum(dim=-1, keepdim=True) + 1e-6)


def _write(state: Tensor, key: Tensor, log_decay: Tensor, change: Tensor) -> None:
    """One token: state [Hv, K, V] in place, key [Hk, K], log_decay [Hv], change [Hv, V]."""
    keys = key.repeat_interleave(state.shape[0] // key.shape[0], dim=0)
    state.mul_(log_decay.exp()[:, None, None]).add_(keys[:, :, None] * change[:, None, :])


def _read(state: Tensor, query: Tensor) -> Tensor:
    """Sᵀq: state [Hv, K, V], query [Hk, K]; returns [Hv, V]."""
    queries = query.repeat_interleave(state.shape[0] // query.shape[0], dim=0)
    return (queries[:, None, :] @ state)[:, 0]


def gdn_step_triton(
    qkv: Tensor,
    ba: Tensor,
    conv: Tensor,
    gates: GdnGates,
    memory: GdnMemory,
    span_starts: Tensor,
    slots: Tensor,
    accepted: Tensor,
) -> Tensor:
    """Launches the kernels of gdn_step."""
    key_heads, key_dim = memory.keys.shape[2:]
    value_heads, value_dim = memory.writes.shape[2:]
    if key_dim != value_dim or key_dim not in (32, 64, 128):
        raise ValueError(f"heads are {key_dim} and {value_dim} wide but on a GPU both must be 32, 64 or 128")
    spans = slots.shape[0]
    out = torch.empty(qkv.shape[0], value_heads, value_dim, dtype=qkv.dtype, device=qkv.device)
    if spans == 0:
        return out

    inputs = gdn_inputs_triton(qkv, ba, conv, gates, memory, span_starts, slots, accepted)
    gdn_step_kernel[max(1, value_dim // BLOCK_V), value_heads, spans](
        memory.states,
        memory.keys,
        memory.log_decays,
        memory.writes,
        span_starts,
        slots,
        accepted,
        inputs.queries,
        inputs.old_keys,
        inputs.values,
        inputs.betas,
        inputs.old_decays,
        out,
        KEY_HEADS=key_heads,
        VALUE_HEADS=value_heads,
        DIM=key_dim,
        W=WINDOW,
        BV=min(BLOCK_V, value_dim),
        BK=BLOCK_K,
        PRECISION=PRECISION,
        READ_PRECISION=READ_PRECISION,
        num_warps=WARPS,
        num_stages=1,
    )
    return out


@jit()
def gdn_step_kernel(
    p_states: Pointer,  # float32 [slots, VALUE_HEADS, DIM, DIM]
    p_keys: Pointer,  # float32 [slots, W, KEY_HEADS, DIM], this pass's
    p_log_decays: Pointer,  # float32 [slots, W, VALUE_HEADS], this pass's
    p_writes: Pointer,  # float32 [slots, W, VALUE_HEADS, DIM], the last pass's
    p_starts: Pointer,  # int64 [S + 1]
    p_slots: Pointer,  # int64 [S]
    p_accepted: Pointer,  # int64 [S]
    p_queries: Pointer,  # as gdn_inputs_kernel leaves them
    p_old_keys: Pointer,
    p_values: Pointer,
    p_betas: Pointer,
    p_old_decays: Pointer,
    p_out: Pointer,  # float [T, VALUE_HEADS, DIM]
    KEY_HEADS: constexpr,
    VALUE_HEADS: constexpr,
    DIM: constexpr,
    W: constexpr,
    BV: constexpr,
    BK: constexpr,
    PRECISION: constexpr,
    READ_PRECISION: constexpr,
) -> None:
    i_v, i_head, i_span = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    slot = tl.load(p_slots + i_span)
    if slot < 0:
        return
    start = tl.load(p_starts + i_span)
    tokens = tl.load(p_starts + i_span + 1) - start
    accepted = tl.load(p_accepted + i_span)
    o_token = tl.arange(0, W)
    o_i, o_j = o_token[:, None], o_token[None, :]
    o_v = i_v * BV + tl.arange(0, BV)
    o_key = (o_token * KEY_HEADS + i_head // (VALUE_HEADS // KEY_HEADS)) * DIM
    o_value = (i_span * W + o_token) * VALUE_HEADS + i_head
    p_write = p_writes + ((slot * W + o_token) * VALUE_HEADS + i_head)[:, None] * DIM + o_v[None, :]
    # folding in is S ← exp(Σ g) S + Σ_j exp(Σ_{i>j} g_i) k_j u_jᵀ
    b_g = tl.load(p_old_decays + o_value)
    b_since = tl.exp(tl.sum(tl.where(o_i > o_j, b_g[:, None], 0.0), axis=0))
    b_u = tl.load(p_write, mask=o_i < accepted, other=0.0) * b_since[:, None]
    b_kept = tl.exp(tl.sum(b_g, axis=0))
    b_kk, b_qk = tl.zeros((W, W), tl.float32), tl.zeros((W, W), tl.float32)
    b_ks, b_qs = tl.zeros((W, BV), tl.float32), tl.zeros((W, BV), tl.float32)
    # a part of the key's dimensions at a time, for whole operands would not fit in the registers
    for i_k in tl.static_range(DIM // BK):
        o_k = i_k * BK + tl.arange(0, BK)
        o_rows, o_columns = o_key[:, None] + o_k[None, :], o_key[None, :] + o_k[:, None]
        b_old = tl.load(p_old_keys + i_span * W * KEY_HEADS * DIM + o_columns)  # [BK, W]
        p_state = p_states + ((slot * VALUE_HEADS + i_head) * DIM + o_k)[:, None] * DIM + o_v[None, :]
        b_state = tl.dot(b_old, b_u, tl.load(p_state) * b_kept, input_precision=PRECISION)
        tl.store(p_state, b_state)
        b_k = tl.load(p_keys + slot * W * KEY_HEADS * DIM + o_rows)  # [W, BK]
        b_kt = tl.load(p_keys + slot * W * KEY_HEADS * DIM + o_columns)
        b_q = tl.load(p_queries + i_span * W * KEY_HEADS * DIM + o_rows)
        b_kk = tl.dot(b_k, b_kt, b_kk, input_precision=PRECISION)
        b_qk = tl.dot(b_q, b_kt, b_qk, input_precision=READ_PRECISION)
        b_ks = tl.dot(b_k, b_state, b_ks, input_precision=PRECISION)
        b_qs = tl.dot(b_q, b_state, b_qs, input_precision=READ_PRECISION)
    # the new tokens: (I + A) U = beta (v - exp(G) k S), o = exp(G) q S + tril(q kᵀ decay) U
    b_v = tl.load(p_values + o_value[:, None] * DIM + o_v[None, :])
    b_beta = tl.load(p_betas + o_value)[:, None]
    b_g = tl.load(p_log_decays + (slot * W + o_token) * VALUE_HEADS + i_head)
    b_carried = tl.exp(tl.cumsum(b_g, axis=0))[:, None]
    # Σ g from j + 1 to i as a product with ones: a difference of running sums would cancel
    b_steps = tl.where(o_j <= o_i, b_g[None, :], 0.0)
    b_decay = tl.exp(tl.dot(b_steps, tl.where(o_i > o_j, 1.0, 0.0), input_precision=PRECISION))
    b_inverse = inverse_of_16(tl.where(o_i > o_j, b_beta * b_decay * b_kk, 0.0), o_i, o_j, PRECISION)
    b_u = tl.dot(b_inverse, b_beta * (b_v - b_carried * b_ks), input_precision=PRECISION)
    b_mix = tl.where(o_i >= o_j, b_decay * b_qk, 0.0)
    b_o = tl.dot(b_mix, b_u, b_carried * b_qs, input_precision=READ_PRECISION)
    # the window's old rows have been read by every thread of this program
    tl.debug_barrier()
    tl.store(p_write, b_u)
    p_o = p_out + ((start + o_token) * VALUE_HEADS + i_head)[:, None] * DIM + o_v[None, :]
    tl.store(p_o, b_o.to(p_out.dtype.element_ty), mask=o_i < tokens)
