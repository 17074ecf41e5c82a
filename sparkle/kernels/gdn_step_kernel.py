"""The states of the delta rule: folds in what was accepted, reads what is new. Knows no gates.

One program owns a part of the values of one head of one sequence, with all that it keeps between passes. So
it folds in while the kernels in front of it still run, and writes its window without asking who reads. Blocks
are transposed, [V / 16, 16, ...]: then the state leaves the product that folds tokens into it as the operand
of the next one, in the registers where it is, and no product has the 64 rows of a warp-group instruction, in
front of which Triton 3.6 may order memory wrongly.
"""

from __future__ import annotations

from sparkle.kernels.gdn_window import in_three
from sparkle.kernels.jit import Block, Pointer, constexpr, jit, tl


@jit()
def values_of(BV: constexpr) -> Block:
    """The numbers of a part's values, [BV / 16, 16, 1]."""
    return (tl.arange(0, BV // 16)[:, None] * 16 + tl.arange(0, 16)[None, :])[:, :, None]


@jit()
def for_each(b_x: Block, BV: constexpr) -> Block:
    """A matrix as the right factor of blocks of values."""
    return tl.broadcast_to(b_x[None, :, :], (BV // 16, b_x.shape[0], b_x.shape[1]))


@jit()
def folded(
    p_state: Pointer,
    p_key: Pointer,
    p_log_decay: Pointer,
    p_write: Pointer,
    accepted: Block,
    BV: constexpr,
    W: constexpr,
) -> Block:
    """S ← exp(Σ g) S + Σ_j exp(Σ_{i>j} g_i) w_j k_jᵀ, in place; returns it [BV / 16, 16, K].

    Pointers to blocks: the state's [BV / 16, 16, K], the window's keys [W, K], g [W], w [BV / 16, 16, W].
    """
    o_token = tl.arange(0, W)
    kept = o_token < accepted
    b_state = tl.load(p_state)
    b_g = tl.load(p_log_decay, mask=kept, other=0.0)
    b_w = tl.load(p_write, mask=kept[None, None, :], other=0.0)
    b_k = tl.load(p_key, mask=kept[:, None], other=0.0)
    b_since = tl.exp(tl.sum(tl.where(o_token[:, None] > o_token[None, :], b_g[:, None], 0.0), axis=0))
    b_high, b_middle, b_low = in_three(b_w * b_since[None, None, :])
    # keys are exact in bfloat16
    b_k = for_each(b_k, BV)
    b_change = tl.dot(b_high, b_k, tl.dot(b_middle, b_k, tl.dot(b_low, b_k)))
    # a sum of its own: added to the state by the tensor core, it would be cut off instead of rounded
    b_state = b_state * tl.exp(tl.sum(b_g, axis=0)) + b_change
    tl.store(p_state, b_state)
    return b_state


@jit()
def gdn_step_kernel(
    p_states: Pointer,  # GdnMemory's four
    p_keys: Pointer,
    p_log_decays: Pointer,
    p_writes: Pointer,
    p_starts: Pointer,  # int64 [S + 1]
    p_slots: Pointer,  # int64 [S]
    p_accepted: Pointer,  # int64 [S]
    p_mixed: Pointer,  # bfloat16 [T, (2 KEY_HEADS + HEADS) DIM]: queries, keys, values
    p_scales: Pointer,  # GdnWindow's two
    p_parts: Pointer,
    p_out: Pointer,  # bfloat16 [T, HEADS, DIM]
    KEY_HEADS: constexpr,
    HEADS: constexpr,
    DIM: constexpr,
    BV: constexpr,
    W: constexpr,
    PDL: constexpr,
) -> None:
    i_part, i_head, i_span = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    slot = tl.load(p_slots + i_span)
    start = tl.load(p_starts + i_span)
    tokens = tl.load(p_starts + i_span + 1) - start
    accepted = tl.load(p_accepted + i_span)
    if slot < 0:
        if PDL:
            tl.extra.cuda.gdc_wait()
        return
    o_token, o_dim = tl.arange(0, W), tl.arange(0, DIM)
    o_i, o_t, o_v = o_token[:, None], o_token[None, None, :], i_part * BV + values_of(BV)
    # the memory is neither of the kernels in front, and they started behind all that is: no need to wait
    p_state = p_states + ((slot * HEADS + i_head) * DIM + o_dim[None, None, :]) * DIM + o_v
    window = (slot * (DIM // BV) + i_part) * W * HEADS + i_head
    p_key = p_keys + (window + o_i * HEADS) * DIM + o_dim[None, :]
    p_log_decay = p_log_decays + window + o_token * HEADS
    p_write = p_writes + (slot * W * HEADS + i_head + o_t * HEADS) * DIM + o_v
    b_state = folded(p_state, p_key, p_log_decay, p_write, accepted, BV, W)
    b_high, b_middle, b_low = in_three(b_state)
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    # all loads first: each takes as long as any of the products
    p_new = p_mixed + start * ((2 * KEY_HEADS + HEADS) * DIM)
    p_q = (
        p_new + i_head // (HEADS // KEY_HEADS) * DIM + o_i * ((2 * KEY_HEADS + HEADS) * DIM) + o_dim[None, :]
    )
    p_v = p_new + (2 * KEY_HEADS + i_head) * DIM + o_t * ((2 * KEY_HEADS + HEADS) * DIM) + o_v
    b_k = tl.load(p_q + KEY_HEADS * DIM, mask=o_i < tokens, other=0.0)
    b_q = tl.load(p_q, mask=o_i < tokens, other=0.0)
    b_v = tl.load(p_v, mask=o_t < tokens, other=0.0).to(tl.float32)
    place = i_span * HEADS + i_head
    p_scale = p_scales + place * (3 * W) + o_token
    b_key_scale, b_query_scale, b_g = tl.load(p_scale), tl.load(p_scale + W), tl.load(p_scale + 2 * W)
    p_square = p_parts + place * (6 * W * W) + o_i * W + o_token[None, :]
    b_p0, b_p1, b_p2 = tl.load(p_square), tl.load(p_square + W * W), tl.load(p_square + 2 * W * W)
    b_q0, b_q1 = tl.load(p_square + 3 * W * W), tl.load(p_square + 4 * W * W)
    b_kt, b_qt = for_each(tl.trans(b_k), BV), for_each(tl.trans(b_q), BV)
    b_r = b_v - b_key_scale[None, None, :] * tl.dot(b_high, b_kt, tl.dot(b_middle, b_kt))
    b_o = b_query_scale[None, None, :] * tl.dot(b_high, b_qt, tl.dot(b_middle, b_qt))
    # of products of parts the least are left out; more of them for what enters the state
    b_high, b_middle, b_low = in_three(b_r)
    b_p0, b_p1, b_q0 = for_each(b_p0, BV), for_each(b_p1, BV), for_each(b_q0, BV)
    b_w = tl.dot(b_high, for_each(b_p2, BV), tl.dot(b_middle, b_p1, tl.dot(b_low, b_p0)))
    b_w = tl.dot(b_high, b_p0, tl.dot(b_high, b_p1, tl.dot(b_middle, b_p0, b_w)))
    b_o = tl.dot(b_high, b_q0, tl.dot(b_high, for_each(b_q1, BV), tl.dot(b_middle, b_q0, b_o)))
    # the window's old rows have been read by every thread of this program
    tl.debug_barrier()
    p_o = p_out + (start * HEADS + i_head + o_t * HEADS) * DIM + o_v
    tl.store(p_o, b_o.to(tl.bfloat16), mask=o_t < tokens)
    tl.store(p_write, b_w)
    tl.store(p_key, b_k)
    tl.store(p_log_decay, b_g)
