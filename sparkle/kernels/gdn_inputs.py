"""The convolution in front of the delta rule of a few new tokens, and its window. Knows no state.

One program owns some channels of one sequence: it alone reads and overwrites their history. Every result is
of one channel and one row, so it is the same however rows and channels are divided.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sparkle.kernels.gdn_memory import TAPS, WINDOW, GdnMemory
from sparkle.kernels.jit import Block, Pointer, constexpr, jit, tl

CHANNELS_PER_PROGRAM = 64
WARPS = 4


def gdn_inputs_triton(
    qkv: Tensor,
    conv: Tensor,
    memory: GdnMemory,
    span_starts: Tensor,
    slots: Tensor,
    accepted: Tensor,
    *,
    width: int,
    pdl: bool,
) -> Tensor:
    """SiLU of the convolution, of qkv's dtype [T, C]; arguments as gdn_step's.

    Moves `memory.columns` on past the accepted inputs and leaves the new ones in `memory.inputs`. No span has
    more than `width` rows. With `pdl` the kernel behind may start as soon as what ran in front has ended.
    """
    mixed = torch.empty(qkv.shape[0], memory.channels, dtype=qkv.dtype, device=qkv.device)
    channels = min(CHANNELS_PER_PROGRAM, memory.channels & -memory.channels)
    gdn_inputs_kernel[memory.channels // channels, slots.shape[0]](
        qkv,
        conv,
        memory.columns,
        memory.inputs,
        span_starts,
        slots,
        accepted,
        mixed,
        qkv.stride(0),
        CHANNELS=memory.channels,
        BC=channels,
        ROWS=1 << (width - 1).bit_length(),
        W=WINDOW,
        TAPS=TAPS,
        PDL=pdl,
        num_warps=WARPS,
        launch_pdl=pdl,
    )
    return mixed


@jit()
def history(
    p_columns: Pointer, p_inputs: Pointer, o_old: Block, CHANNELS: constexpr, TAPS: constexpr
) -> Block:
    """Pointers to a slot's rows in front of the new ones: the columns, then the window's inputs."""
    p_input = p_inputs + (o_old - (TAPS - 1)) * CHANNELS
    return tl.where(o_old < TAPS - 1, p_columns + o_old * CHANNELS, p_input)


@jit()
def gdn_inputs_kernel(
    p_qkv: Pointer,  # float [T, CHANNELS], rows of stride stride_qkv
    p_conv: Pointer,  # float [CHANNELS, TAPS]
    p_columns: Pointer,  # GdnMemory's
    p_inputs: Pointer,  # GdnMemory's
    p_starts: Pointer,  # int64 [S + 1]
    p_slots: Pointer,  # int64 [S]
    p_accepted: Pointer,  # int64 [S]
    p_mixed: Pointer,  # as qkv [T, CHANNELS]
    stride_qkv: int,
    CHANNELS: constexpr,
    BC: constexpr,
    ROWS: constexpr,  # the longest span, up to a power of two
    W: constexpr,
    TAPS: constexpr,
    PDL: constexpr,
) -> None:
    i_span = tl.program_id(1).to(tl.int64)
    o_channel = tl.program_id(0) * BC + tl.arange(0, BC)
    # the weights are nobody's output. Read as they lie, then parted: a column at a time would be strided
    b_taps = tl.load(p_conv + o_channel[:, None] * TAPS + tl.arange(0, TAPS)[None, :]).to(tl.float32)
    b_even, b_odd = tl.split(tl.reshape(b_taps, (BC, 2, 2)))  # taps 0 and 2, taps 1 and 3
    b_0, b_2 = tl.split(b_even)
    b_1, b_3 = tl.split(b_odd)
    taps = (b_0, b_1, b_2, b_3)
    if PDL:
        # in this order: who starts now may read all that was written in front of this kernel
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    slot = tl.load(p_slots + i_span)
    if slot < 0:
        return
    start = tl.load(p_starts + i_span)
    tokens = tl.load(p_starts + i_span + 1) - start
    accepted = tl.load(p_accepted + i_span)
    p_columns += slot * (TAPS - 1) * CHANNELS
    p_inputs += slot * W * CHANNELS
    o_token = tl.arange(0, ROWS)[:, None]
    o_channel = o_channel[None, :]
    b_sum = tl.zeros((ROWS, BC), tl.float32)
    b_x = tl.zeros((ROWS, BC), p_qkv.dtype.element_ty)
    for i_tap in tl.static_range(TAPS):
        o_row = o_token + i_tap - (TAPS - 1)
        p_old = history(p_columns, p_inputs, o_row + accepted + TAPS - 1, CHANNELS, TAPS)
        p_x = tl.where(o_row < 0, p_old, p_qkv + (start + o_row) * stride_qkv)
        b_x = tl.load(p_x + o_channel, mask=o_row < tokens, other=0.0)
        b_sum += taps[i_tap][None, :] * b_x.to(tl.float32)
    o_left = tl.arange(0, TAPS)[:, None]
    p_old = history(p_columns, p_inputs, o_left + accepted, CHANNELS, TAPS)
    b_old = tl.load(p_old + o_channel, mask=o_left < TAPS - 1, other=0.0)
    # what is overwritten here, other threads of this program have read
    tl.debug_barrier()
    tl.store(p_columns + o_left * CHANNELS + o_channel, b_old, mask=o_left < TAPS - 1)
    tl.store(p_inputs + o_token * CHANNELS + o_channel, b_x, mask=o_token < tokens)
    b_y = b_sum * tl.sigmoid(b_sum)
    tl.store(p_mixed + (start + o_token) * CHANNELS + o_channel, b_y, mask=o_token < tokens)
