"""What the delta rule of a few new tokens is fed: convolution, unit keys and queries, gates. Knows no state.

One program owns the channels of one head of one sequence: it alone reads and overwrites their history, so the
kernel behind it may find the new window in the memory and the old one in this kernel's results.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sparkle.kernels.gdn_memory import TAPS, WINDOW, GdnGates, GdnMemory
from sparkle.kernels.jit import Block, Pointer, constexpr, jit, tl


@dataclass(frozen=True, slots=True, kw_only=True)
class GdnInputs:
    """Rows of S sequences, WINDOW each; those past a span's end are 0."""

    queries: Tensor  # float32 [S, WINDOW, Hk, K], of length K^-0.5
    old_keys: Tensor  # float32 [S, WINDOW, Hk, K], the accepted ones of the window before
    values: Tensor  # float32 [S, WINDOW, Hv, V]
    betas: Tensor  # float32 [S, WINDOW, Hv]
    old_decays: Tensor  # float32 [S, WINDOW, Hv], the accepted ones of the window before


def gdn_inputs_triton(
    qkv: Tensor,
    ba: Tensor,
    conv: Tensor,
    gates: GdnGates,
    memory: GdnMemory,
    span_starts: Tensor,
    slots: Tensor,
    accepted: Tensor,
) -> GdnInputs:
    """Launches the kernel; arguments as gdn_step's. `memory` gets all of its new window but the writes."""
    key_heads, key_dim = memory.keys.shape[2:]
    value_heads, value_dim = memory.writes.shape[2:]
    spans = slots.shape[0]

    def scratch(*shape: int) -> Tensor:
        return torch.empty(spans, WINDOW, *shape, dtype=torch.float32, device=qkv.device)

    inputs = GdnInputs(
        queries=scratch(key_heads, key_dim),
        old_keys=scratch(key_heads, key_dim),
        values=scratch(value_heads, value_dim),
        betas=scratch(value_heads),
        old_decays=scratch(value_heads),
    )
    gdn_inputs_kernel[2 * key_heads + value_heads, spans](
        qkv,
        ba,
        conv,
        gates.a_log,
        gates.dt_bias,
        memory.columns,
        memory.inputs,
        memory.keys,
        memory.log_decays,
        span_starts,
        slots,
        accepted,
        inputs.queries,
        inputs.old_keys,
        inputs.values,
        inputs.betas,
        inputs.old_decays,
        qkv.stride(0),
        ba.stride(0),
        KEY_HEADS=key_heads,
        VALUE_HEADS=value_heads,
        CHANNELS=memory.channels,
        DIM=key_dim,
        W=WINDOW,
        TAPS=TAPS,
        num_warps=4,
    )
    return inputs


@jit()
def convolved_head(
    p_qkv: Pointer,
    p_conv: Pointer,
    p_columns: Pointer,
    p_inputs: Pointer,
    stride_qkv: Block,
    start: Block,
    tokens: Block,
    accepted: Block,
    o_channel: Block,
    CHANNELS: constexpr,
    W: constexpr,
    TAPS: constexpr,
) -> Block:
    """SiLU of the convolution, float32 [W, DIM], 0 past the span; moves columns and window on in place.

    p_columns and p_inputs are the slot's. Row r of the history is columns[r], or inputs[r - TAPS + 1].
    """
    o_token = tl.arange(0, W)[:, None]
    b_sum = tl.zeros((W, o_channel.shape[1]), tl.float32)
    b_x = b_sum
    for i_tap in tl.static_range(TAPS):
        o_row = o_token + i_tap - (TAPS - 1)
        o_old = o_row + accepted + TAPS - 1
        b_new = tl.load(
            p_qkv + (start + o_row) * stride_qkv + o_channel, mask=(o_row >= 0) & (o_row < tokens), other=0.0
        )
        b_column = tl.load(
            p_columns + o_old * CHANNELS + o_channel, mask=(o_row < 0) & (o_old < TAPS - 1), other=0.0
        )
        b_input = tl.load(
            p_inputs + (o_old - TAPS + 1) * CHANNELS + o_channel,
            mask=(o_row < 0) & (o_old >= TAPS - 1),
            other=0.0,
        )
        b_x = b_new.to(tl.float32) + b_column.to(tl.float32) + b_input.to(tl.float32)
        b_sum += tl.load(p_conv + o_channel * TAPS + i_tap).to(tl.float32) * b_x
    o_left = tl.arange(0, 4)[:, None]
    o_old = o_left + accepted
    b_column = tl.load(
        p_columns + o_old * CHANNELS + o_channel, mask=(o_left < TAPS - 1) & (o_old < TAPS - 1), other=0.0
    )
    b_input = tl.load(
        p_inputs + (o_old - TAPS + 1) * CHANNELS + o_channel,
        mask=(o_left < TAPS - 1) & (o_old >= TAPS - 1),
        other=0.0,
    )
    # what is overwritten here, other threads of this program have read
    tl.debug_barrier()
    tl.store(p_columns + o_left * CHANNELS + o_channel, b_column + b_input, mask=o_left < TAPS - 1)
    tl.store(p_inputs + o_token * CHANNELS + o_channel, b_x, mask=o_token < tokens)
    b_y = (b_sum * tl.sigmoid(b_sum)).to(p_qkv.dtype.element_ty).to(tl.float32)
    return tl.where(o_token < tokens, b_y, 0.0)


@jit()
def softplus(b_x: Block) -> Block:
    """log(1 + exp(x)), also where exp(x) is lost beside 1 (Kahan's form)."""
    b_exp = tl.exp(tl.minimum(b_x, 20.0))
    b_one = 1.0 + b_exp
    b_small = tl.log(b_one) * (b_exp / tl.where(b_one == 1.0, 1.0, b_one - 1.0))
    return tl.where(b_x > 20.0, b_x, tl.where(b_one == 1.0, b_exp, b_small))


@jit("stride_qkv", "stride_ba")
def gdn_inputs_kernel(
    p_qkv: Pointer,  # float [T, C], rows of stride stride_qkv
    p_ba: Pointer,  # float [T, 2 VALUE_HEADS], rows of stride stride_ba
    p_conv: Pointer,  # float [C, TAPS]
    p_a_log: Pointer,  # float [VALUE_HEADS]
    p_dt_bias: Pointer,  # float [VALUE_HEADS]
    p_columns: Pointer,  # GdnMemory's four, [slots, ...]
    p_inputs: Pointer,
    p_keys: Pointer,
    p_log_decays: Pointer,
    p_starts: Pointer,  # int64 [S + 1]
    p_slots: Pointer,  # int64 [S]
    p_accepted: Pointer,  # int64 [S]
    p_queries: Pointer,  # float32 [S, W, KEY_HEADS, DIM]
    p_old_keys: Pointer,  # the same
    p_values: Pointer,  # float32 [S, W, VALUE_HEADS, DIM]
    p_betas: Pointer,  # float32 [S, W, VALUE_HEADS]
    p_old_decays: Pointer,  # the same
    stride_qkv: int,
    stride_ba: int,
    KEY_HEADS: constexpr,
    VALUE_HEADS: constexpr,
    CHANNELS: constexpr,
    DIM: constexpr,
    W: constexpr,
    TAPS: constexpr,
) -> None:
    i_head, i_span = tl.program_id(0), tl.program_id(1).to(tl.int64)
    slot = tl.load(p_slots + i_span)
    if slot < 0:
        return
    start = tl.load(p_starts + i_span)
    tokens = tl.load(p_starts + i_span + 1) - start
    accepted = tl.load(p_accepted + i_span)
    o_token, o_dim = tl.arange(0, W), tl.arange(0, DIM)
    b_y = convolved_head(
        p_qkv,
        p_conv,
        p_columns + slot * (TAPS - 1) * CHANNELS,
        p_inputs + slot * W * CHANNELS,
        stride_qkv,
        start,
        tokens,
        accepted,
        i_head * DIM + o_dim[None, :],
        CHANNELS,
        W,
        TAPS,
    )
    b_length = tl.rsqrt(tl.sum(b_y * b_y, axis=1) + 1e-6)[:, None]
    if i_head < KEY_HEADS:
        o_key = (o_token[:, None] * KEY_HEADS + i_head) * DIM + o_dim[None, :]
        tl.store(p_queries + i_span * W * KEY_HEADS * DIM + o_key, b_y * b_length * DIM**-0.5)
    elif i_head < 2 * KEY_HEADS:
        o_key = (o_token[:, None] * KEY_HEADS + i_head - KEY_HEADS) * DIM + o_dim[None, :]
        p_key = p_keys + slot * W * KEY_HEADS * DIM + o_key
        b_old = tl.load(p_key, mask=o_token[:, None] < accepted, other=0.0)
        tl.store(p_old_keys + i_span * W * KEY_HEADS * DIM + o_key, b_old)
        tl.debug_barrier()
        tl.store(p_key, b_y * b_length)
    else:
        i_value = i_head - 2 * KEY_HEADS
        o_value = (i_span * W + o_token) * VALUE_HEADS + i_value
        tl.store(p_values + o_value[:, None] * DIM + o_dim[None, :], b_y)
        p_decay = p_log_decays + (slot * W + o_token) * VALUE_HEADS + i_value
        tl.store(p_old_decays + o_value, tl.load(p_decay, mask=o_token < accepted, other=0.0))
        real = o_token < tokens
        p_b = p_ba + (start + o_token) * stride_ba + i_value
        b_b = tl.load(p_b, mask=real, other=0.0).to(tl.float32)
        b_a = tl.load(p_b + VALUE_HEADS, mask=real, other=0.0).to(tl.float32)
        tl.store(p_betas + o_value, tl.where(real, tl.sigmoid(b_b), 0.0))
        b_rate = tl.exp(tl.load(p_a_log + i_value).to(tl.float32))
        b_decay = -b_rate * softplus(b_a + tl.load(p_dt_bias + i_value).to(tl.float32))
        tl.debug_barrier()
        tl.store(p_decay, tl.where(real, b_decay, 0.0))
