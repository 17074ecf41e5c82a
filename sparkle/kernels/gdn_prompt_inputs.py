"""What the delta rule over prompts is fed: convolution and gates of spans of any length. Knows no state.

A program walks the rows of one piece of a span for some channels, with the last rows in registers, and so
reads each row once. The program with a span's first piece alone touches the slot's columns: it reads them
and leaves the span's last inputs there.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from sparkle.kernels import reference_sequence
from sparkle.kernels.gdn_arguments import require_gdn
from sparkle.kernels.gdn_memory import TAPS, GdnGates, GdnMemory
from sparkle.kernels.jit import Block, Pointer, constexpr, jit, tl
from sparkle.kernels.softplus import softplus
from sparkle.kernels.times_sigmoid import times_sigmoid

BLOCK_CHANNELS, PIECE_ROWS = 512, 64
WARPS = 4
MIN_SPANS = 8  # one binary for any smaller number


def gdn_prompt_inputs(
    qkv: Tensor,
    ba: Tensor,
    conv: Tensor,
    gates: GdnGates,
    memory: GdnMemory,
    span_starts: Tensor,
    slots: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Convolve each span behind the columns of its slot, and leave the slot the span's last inputs.

    mixed_t = SiLU(Σ_i conv[:, i] qkv_{t-3+i}), rounded once; b, a = ba; log_decay = -exp(a_log) softplus(a +
    dt_bias), beta = sigmoid(b).

    qkv float [T, C], rows of any stride, in the dtype of memory.columns; ba float [T, 2 Hv], rows of any
    stride; conv float [C, TAPS], dense; span_starts int64 [S+1]; slots int64 [S], all different, negative
    only where the span is empty. `memory.columns` is written in place: of a span shorter than TAPS-1 it keeps
    what still counts of its own. The slots' windows must have been folded in before (gdn_step with an empty
    span), or the sequences be new. Returns mixed [T, C] in qkv's dtype, log_decay and beta float32 [T, Hv].
    ValueError for any other shape or dtype.
    """
    require_gdn(qkv, ba, conv, gates, memory, span_starts, slots=slots)
    run = gdn_prompt_inputs_triton if qkv.is_cuda else gdn_prompt_inputs_reference
    return run(qkv, ba, conv, gates, memory, span_starts, slots)


def gdn_prompt_inputs_reference(
    qkv: Tensor,
    ba: Tensor,
    conv: Tensor,
    gates: GdnGates,
    memory: GdnMemory,
    span_starts: Tensor,
    slots: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """See gdn_prompt_inputs."""
    mixed = reference_sequence.causal_conv(qkv, conv, memory.columns, span_starts, slots)
    b, a = ba.float().chunk(2, dim=1)
    log_decay = -gates.a_log.float().exp() * F.softplus(a + gates.dt_bias.float())
    return mixed, log_decay, b.sigmoid()


def gdn_prompt_inputs_triton(
    qkv: Tensor,
    ba: Tensor,
    conv: Tensor,
    gates: GdnGates,
    memory: GdnMemory,
    span_starts: Tensor,
    slots: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Launches the kernel of gdn_prompt_inputs."""
    rows, channels = qkv.shape
    value_heads, spans = memory.states.shape[1], slots.shape[0]
    mixed = torch.empty(rows, channels, dtype=qkv.dtype, device=qkv.device)
    log_decay, beta = (
        torch.empty(rows, value_heads, dtype=torch.float32, device=qkv.device) for _ in range(2)
    )
    if rows:
        # the last program of a piece makes its gates
        gdn_prompt_inputs_kernel[-(-channels // BLOCK_CHANNELS) + 1, rows // PIECE_ROWS + spans](
            qkv,
            ba,
            conv,
            gates.a_log,
            gates.dt_bias,
            memory.columns,
            span_starts,
            slots,
            mixed,
            log_decay,
            beta,
            spans,
            qkv.stride(0),
            ba.stride(0),
            CHANNELS=channels,
            VALUE_HEADS=value_heads,
            HEADS=1 << (value_heads - 1).bit_length(),
            SPANS=max(MIN_SPANS, 1 << (spans - 1).bit_length()),
            BLOCK=BLOCK_CHANNELS,
            ROWS=PIECE_ROWS,
            TAPS=TAPS,
            num_warps=WARPS,
        )
    return mixed, log_decay, beta


@jit()
def piece_of_span(
    p_starts: Pointer, spans: Block, i_piece: Block, SPANS: constexpr, ROWS: constexpr
) -> Block:
    """Span, its first row and end, and the first row of a piece; that is past the end where there is none."""
    # span s has the pieces from start // ROWS + s on: as many as it needs, some ids are left over
    o_span = tl.arange(0, SPANS)
    b_start = tl.load(p_starts + o_span, mask=o_span < spans, other=0)
    b_is_behind = (o_span < spans) & (b_start // ROWS + o_span <= i_piece)
    span = tl.sum(b_is_behind.to(tl.int32), axis=0) - 1
    start, stop = tl.load(p_starts + span), tl.load(p_starts + span + 1)
    return span, start, stop, start + (i_piece - start // ROWS - span) * ROWS


@jit()
def input_row(
    p_qkv: Pointer,
    p_columns: Pointer,
    row: Block,
    start: Block,
    stride: Block,
    o_channel: Block,
    CHANNELS: constexpr,
    TAPS: constexpr,
) -> Block:
    """One row of the convolution's inputs: of the span, or in front of it of the slot's columns."""
    inside = o_channel < CHANNELS
    b_new = tl.load(p_qkv + row * stride + o_channel, mask=inside & (row >= start), other=0.0)
    p_old = p_columns + (TAPS - 1 + row - start) * CHANNELS + o_channel
    return b_new + tl.load(p_old, mask=inside & (row < start), other=0.0)


@jit()
def four_rows(p_x: Pointer, count: Block, stride: Block, inside: Block) -> tuple[Block, Block, Block, Block]:
    """The rows from p_x on, 0 behind the first `count`."""
    b_first = tl.load(p_x, mask=inside & (count > 0), other=0.0)
    b_second = tl.load(p_x + stride, mask=inside & (count > 1), other=0.0)
    b_third = tl.load(p_x + 2 * stride, mask=inside & (count > 2), other=0.0)
    b_fourth = tl.load(p_x + 3 * stride, mask=inside & (count > 3), other=0.0)
    return b_first, b_second, b_third, b_fourth


@jit()
def convolved(
    b_x0: Block, b_x1: Block, b_x2: Block, b_x3: Block, b_w0: Block, b_w1: Block, b_w2: Block, b_w3: Block
) -> Block:
    """One row of results in the inputs' dtype, of its inputs, oldest first, and the taps."""
    b_sum = b_w0 * b_x0.to(tl.float32) + b_w1 * b_x1.to(tl.float32)
    b_sum += b_w2 * b_x2.to(tl.float32)
    b_sum += b_w3 * b_x3.to(tl.float32)
    return times_sigmoid(b_sum, b_sum).to(b_x3.dtype)


@jit()
def tap_weights(
    p_conv: Pointer, o_channel: Block, i_tap: constexpr, CHANNELS: constexpr, TAPS: constexpr
) -> Block:
    """float32: one tap of each channel."""
    # all taps in one wide load: four narrow ones would each touch every line of them
    o_tap = tl.arange(0, TAPS)[None, :]
    p_w = p_conv + o_channel[:, None] * TAPS + o_tap
    b_w = tl.load(p_w, mask=o_channel[:, None] < CHANNELS, other=0.0).to(tl.float32)
    return tl.sum(tl.where(o_tap == i_tap, b_w, 0.0), axis=1)


@jit()
def make_gates(
    p_ba: Pointer,
    p_a_log: Pointer,
    p_dt_bias: Pointer,
    p_log_decay: Pointer,
    p_beta: Pointer,
    first: Block,
    rows: Block,
    stride_ba: Block,
    VALUE_HEADS: constexpr,
    HEADS: constexpr,
) -> None:
    """log_decay and beta of the rows from `first` on."""
    o_head = tl.arange(0, HEADS)[None, :]
    inside = o_head < VALUE_HEADS
    b_rate = tl.exp(tl.load(p_a_log + o_head, mask=inside, other=0.0).to(tl.float32))
    b_bias = tl.load(p_dt_bias + o_head, mask=inside, other=0.0).to(tl.float32)
    # few at a time: the registers of this branch would leave the other less room
    for i_row in range(0, rows, 8):
        o_row = i_row + tl.arange(0, 8)[:, None]
        real = inside & (o_row < rows)
        p_b = p_ba + (first + o_row) * stride_ba + o_head
        b_b = tl.load(p_b, mask=real, other=0.0).to(tl.float32)
        b_a = tl.load(p_b + VALUE_HEADS, mask=real, other=0.0).to(tl.float32)
        o_gate = (first + o_row) * VALUE_HEADS + o_head
        tl.store(p_log_decay + o_gate, -b_rate * softplus(b_a + b_bias), mask=real)
        tl.store(p_beta + o_gate, tl.sigmoid(b_b), mask=real)


@jit("spans")
def gdn_prompt_inputs_kernel(
    p_qkv: Pointer,  # float [T, CHANNELS], rows of stride stride_qkv
    p_ba: Pointer,  # float [T, 2 VALUE_HEADS], rows of stride stride_ba
    p_conv: Pointer,  # float [CHANNELS, TAPS]
    p_a_log: Pointer,  # float [VALUE_HEADS]
    p_dt_bias: Pointer,  # float [VALUE_HEADS]
    p_columns: Pointer,  # as qkv [slots, TAPS - 1, CHANNELS]
    p_starts: Pointer,  # int64 [spans + 1]
    p_slots: Pointer,  # int64 [spans]
    p_mixed: Pointer,  # as qkv [T, CHANNELS]
    p_log_decay: Pointer,  # float32 [T, VALUE_HEADS]
    p_beta: Pointer,  # float32 [T, VALUE_HEADS]
    spans: int,
    stride_qkv: int,
    stride_ba: int,
    CHANNELS: constexpr,
    VALUE_HEADS: constexpr,
    HEADS: constexpr,  # VALUE_HEADS, up to a power of two
    SPANS: constexpr,  # spans, up to a power of two
    BLOCK: constexpr,
    ROWS: constexpr,
    TAPS: constexpr,
) -> None:
    i_block = tl.program_id(0)
    span, start, stop, first = piece_of_span(p_starts, spans, tl.program_id(1), SPANS, ROWS)
    if first >= stop:
        return
    rows = tl.minimum(stop - first, ROWS).to(tl.int32)
    if i_block == tl.num_programs(0) - 1:
        make_gates(
            p_ba,
            p_a_log,
            p_dt_bias,
            p_log_decay,
            p_beta,
            first,
            rows,
            stride_ba,
            VALUE_HEADS,
            HEADS,
        )
    else:
        p_columns += tl.load(p_slots + span) * (TAPS - 1) * CHANNELS
        o_channel = i_block * BLOCK + tl.arange(0, BLOCK)
        inside = o_channel < CHANNELS
        b_x0 = input_row(p_qkv, p_columns, first - 3, start, stride_qkv, o_channel, CHANNELS, TAPS)
        b_x1 = input_row(p_qkv, p_columns, first - 2, start, stride_qkv, o_channel, CHANNELS, TAPS)
        b_x2 = input_row(p_qkv, p_columns, first - 1, start, stride_qkv, o_channel, CHANNELS, TAPS)
        if first == start:
            b_old = input_row(p_qkv, p_columns, stop - 3, start, stride_qkv, o_channel, CHANNELS, TAPS)
            b_middle = input_row(p_qkv, p_columns, stop - 2, start, stride_qkv, o_channel, CHANNELS, TAPS)
            b_new = input_row(p_qkv, p_columns, stop - 1, start, stride_qkv, o_channel, CHANNELS, TAPS)
            # before the rows, so that nothing of it stays in registers; what is overwritten has been read
            tl.debug_barrier()
            tl.store(p_columns + o_channel, b_old, mask=inside)
            tl.store(p_columns + CHANNELS + o_channel, b_middle, mask=inside)
            tl.store(p_columns + 2 * CHANNELS + o_channel, b_new, mask=inside)
        b_w0 = tap_weights(p_conv, o_channel, 0, CHANNELS, TAPS)
        b_w1 = tap_weights(p_conv, o_channel, 1, CHANNELS, TAPS)
        b_w2 = tap_weights(p_conv, o_channel, 2, CHANNELS, TAPS)
        b_w3 = tap_weights(p_conv, o_channel, 3, CHANNELS, TAPS)
        p_x, p_y = p_qkv + first * stride_qkv + o_channel, p_mixed + first * CHANNELS + o_channel
        # no load moves in front of a store: what shall be under way while four rows are computed, the next
        # four, is asked for before
        b_x3, b_x4, b_x5, b_x6 = four_rows(p_x, rows, stride_qkv, inside)
        for i_row in range(0, rows, 4):
            p_x += 4 * stride_qkv
            b_x7, b_x8, b_x9, b_x10 = four_rows(p_x, rows - i_row - 4, stride_qkv, inside)
            b_y = convolved(b_x0, b_x1, b_x2, b_x3, b_w0, b_w1, b_w2, b_w3)
            tl.store(p_y, b_y, mask=inside)
            b_y = convolved(b_x1, b_x2, b_x3, b_x4, b_w0, b_w1, b_w2, b_w3)
            tl.store(p_y + CHANNELS, b_y, mask=inside & (i_row + 1 < rows))
            b_y = convolved(b_x2, b_x3, b_x4, b_x5, b_w0, b_w1, b_w2, b_w3)
            tl.store(p_y + 2 * CHANNELS, b_y, mask=inside & (i_row + 2 < rows))
            b_y = convolved(b_x3, b_x4, b_x5, b_x6, b_w0, b_w1, b_w2, b_w3)
            tl.store(p_y + 3 * CHANNELS, b_y, mask=inside & (i_row + 3 < rows))
            b_x0, b_x1, b_x2, b_x3, b_x4, b_x5, b_x6 = b_x4, b_x5, b_x6, b_x7, b_x8, b_x9, b_x10
            p_y += 4 * CHANNELS
