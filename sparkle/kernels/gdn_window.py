"""What the new tokens of a sequence do to one another in the delta rule, as two small matrices a head.

With r_j = v_j - carried_j S k_j, what token j would write if it were alone, token i writes w_i = Σ_j P_ij r_j
and reads o_i = carried_i S q_i + Σ_j Q_ij r_j: P = diag(1/|k|) (I + A)⁻¹ diag(beta), Q = mix P, where
A_ij = beta_i decay_ij k_i·k_j for i > j and mix_ij = decay_ij q_i·k_j for i >= j. Knows no state.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sparkle.kernels.gdn_memory import WINDOW, GdnGates
from sparkle.kernels.jit import Block, Pointer, constexpr, gl, gluon_jit, tl
from sparkle.kernels.softplus import softplus


@dataclass(frozen=True, slots=True, kw_only=True)
class GdnWindow:
    """For each of S sequences and Hv heads; rows and columns past a span's end are 0."""

    scales: Tensor  # float32 [S, Hv, 3, WINDOW]: carried_i / |k_i|, carried_i / |q_i| · K^-0.5, g_i
    parts: Tensor  # bfloat16 [S, Hv, 6, WINDOW, WINDOW]: Pᵀ in three, largest first, then Qᵀ


def gdn_window_triton(
    mixed: Tensor,
    ba: Tensor,
    gates: GdnGates,
    span_starts: Tensor,
    slots: Tensor,
    *,
    key_heads: int,
    value_heads: int,
    dim: int,
    width: int,
    pdl: bool,
) -> GdnWindow:
    """Launches the kernel on what gdn_inputs_triton gives; other arguments as gdn_step's."""
    heads, device = (slots.shape[0], value_heads), mixed.device
    window = GdnWindow(
        scales=torch.empty(*heads, 3, WINDOW, dtype=torch.float32, device=device),
        parts=torch.empty(*heads, 6, WINDOW, WINDOW, dtype=torch.bfloat16, device=device),
    )
    gdn_window_kernel[value_heads, slots.shape[0]](
        mixed,
        ba,
        gates.a_log,
        gates.dt_bias,
        span_starts,
        slots,
        window.scales,
        window.parts,
        ba.stride(0),
        KEY_HEADS=key_heads,
        HEADS=value_heads,
        DIM=dim,
        W=WINDOW,
        ROWS=1 << (width - 1).bit_length(),
        PDL=pdl,
        num_warps=1,
        launch_pdl=pdl,
    )
    return window


@gluon_jit()
def in_three(b_x: Block) -> Block:
    """A float32 block as the sum of three in bfloat16, largest first, each cut off from what is left."""
    b_high = (b_x.to(gl.int32, bitcast=True) & -65536).to(gl.float32, bitcast=True)
    b_rest = b_x - b_high
    b_middle = (b_rest.to(gl.int32, bitcast=True) & -65536).to(gl.float32, bitcast=True)
    return b_high.to(gl.bfloat16), b_middle.to(gl.bfloat16), (b_rest - b_middle).to(gl.bfloat16)


@gluon_jit()
def store_in_three(p_out: Pointer, b_x: Block, N: constexpr) -> None:
    """Parts of N values each, one behind the other."""
    b_high, b_middle, b_low = in_three(b_x)
    gl.store(p_out, b_high)
    gl.store(p_out + N, b_middle)
    gl.store(p_out + 2 * N, b_low)


@gluon_jit()
def added(a: Block, b: Block) -> Block:
    """For running sums."""
    return a + b


@gluon_jit()
def products(b_x: Block, b_kt: Block, MMA: constexpr, COLUMNS: constexpr) -> Block:
    """x kᵀ float32 [W, W] in the layout COLUMNS, of operands in registers."""
    W: constexpr = b_x.shape[0]
    b_none = gl.zeros([W, W], gl.float32, layout=MMA)
    return gl.convert_layout(gl.nvidia.ampere.mma_v2(b_x, b_kt, b_none), COLUMNS)


@gluon_jit()
def per_length(b_square: Block, o_i: Block, o_j: Block) -> Block:
    """1 / |x| float32 [W], from x xᵀ."""
    return gl.rsqrt(gl.sum(gl.where(o_i == o_j, b_square, 0.0), axis=0) + 1e-6)


@gluon_jit()
def solved(b_lower: Block, b_mix: Block, b_beta: Block, o_i: Block, o_j: Block, ROWS: constexpr) -> Block:
    """X = (I + lower)⁻¹ diag(beta) and mix X, float32 [W, W], a column in a thread: row by row.

    Only the first ROWS rows of X are not 0.
    """
    COLUMNS: constexpr = b_lower.type.layout
    W: constexpr = b_lower.shape[0]
    s_lower = gl.allocate_shared_memory(gl.float32, [W, W], gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))
    s_mix = gl.allocate_shared_memory(gl.float32, [W, W], gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))
    s_lower.permute([1, 0]).store(b_lower)
    s_mix.permute([1, 0]).store(b_mix)
    gl.thread_barrier()
    b_x = gl.where(o_i == o_j, b_beta[None, :], 0.0)
    b_read = gl.zeros([W, W], gl.float32, layout=COLUMNS)
    for i in gl.static_range(ROWS):
        # of a column only one row is not 0 here: no sum, so its bits may be taken together
        b_row = gl.where(o_i == i, b_x, 0.0).to(gl.int32, bitcast=True)
        b_row = gl.xor_sum(b_row, axis=0).to(gl.float32, bitcast=True)[None, :]
        b_read += s_mix.slice(i, 1).permute([1, 0]).load(COLUMNS) * b_row
        b_x -= s_lower.slice(i, 1).permute([1, 0]).load(COLUMNS) * b_row
    return b_x, b_read


@gluon_jit()
def gdn_window_kernel(
    p_mixed: Pointer,  # bfloat16 [T, (2 KEY_HEADS + HEADS) DIM]: queries, keys, values
    p_ba: Pointer,  # float [T, 2 HEADS], rows of stride stride_ba
    p_a_log: Pointer,  # float [HEADS]
    p_dt_bias: Pointer,  # float [HEADS]
    p_starts: Pointer,  # int64 [S + 1]
    p_slots: Pointer,  # int64 [S]
    p_scales: Pointer,  # GdnWindow's two
    p_parts: Pointer,
    stride_ba: int,
    KEY_HEADS: constexpr,
    HEADS: constexpr,
    DIM: constexpr,
    W: constexpr,
    ROWS: constexpr,  # of the longest span
    PDL: constexpr,
) -> None:
    if PDL:
        # the convolution in front has waited for all before it, so who starts now may read that too
        tl.extra.cuda.gdc_launch_dependents()
    i_head, i_span = gl.program_id(0), gl.program_id(1).to(gl.int64)
    slot = gl.load(p_slots + i_span)
    start = gl.load(p_starts + i_span)
    tokens = gl.load(p_starts + i_span + 1) - start
    # a thread has a column: then what is done row by row needs no other thread
    COLUMNS: constexpr = gl.BlockedLayout([W, 1], [1, 32], [1, 1], [0, 1])
    ALL: constexpr = gl.SliceLayout(1, COLUMNS)
    MMA: constexpr = gl.NVMMADistributedLayout([2, 0], [1, 1], [16, 8])
    # 8 neighbours of a row in a thread: the sum over them is the same in whatever order they are taken
    LEFT: constexpr = gl.DotOperandLayout(0, MMA, 8)
    RIGHT: constexpr = gl.DotOperandLayout(1, MMA, 8)
    o_i = gl.arange(0, W, layout=ALL)[:, None]
    o_token = gl.arange(0, W, layout=gl.SliceLayout(0, COLUMNS))
    o_j = o_token[None, :]
    # the gates are not the convolution's: no need to wait for it
    real = (o_token < tokens) & (slot >= 0)
    p_ba += (start + o_token) * stride_ba + i_head
    b_beta = 1.0 / (1.0 + gl.exp(-gl.load(p_ba, mask=real, other=0.0).to(gl.float32)))
    b_a = gl.load(p_ba + HEADS, mask=real, other=0.0).to(gl.float32)
    b_rate = gl.exp(gl.load(p_a_log + i_head).to(gl.float32))
    b_g = -b_rate * softplus(b_a + gl.load(p_dt_bias + i_head).to(gl.float32))
    b_beta, b_g = gl.where(real, b_beta, 0.0), gl.where(real, b_g, 0.0)
    b_all_g, b_all_beta = gl.convert_layout(b_g, ALL), gl.convert_layout(b_beta, ALL)
    b_carried = gl.exp(gl.sum(gl.where(o_i <= o_j, b_all_g[:, None], 0.0), axis=0))
    # Σ g from j + 1 to i by itself: a difference of running sums would cancel
    b_decay = gl.exp(gl.associative_scan(gl.where(o_i > o_j, b_all_g[:, None], 0.0), 0, added))
    if PDL:
        tl.extra.cuda.gdc_wait()
    if slot < 0:
        return
    ROW: constexpr = (2 * KEY_HEADS + HEADS) * DIM
    p_q = p_mixed + start * ROW + i_head // (HEADS // KEY_HEADS) * DIM
    o_row = gl.arange(0, W, layout=gl.SliceLayout(1, LEFT))[:, None]
    o_dim = gl.arange(0, DIM, layout=gl.SliceLayout(0, LEFT))[None, :]
    here = (o_row < tokens) & (o_dim < DIM)
    b_q = gl.load(p_q + o_row * ROW + o_dim, mask=here, other=0.0)
    b_k = gl.load(p_q + KEY_HEADS * DIM + o_row * ROW + o_dim, mask=here, other=0.0)
    o_row = gl.arange(0, W, layout=gl.SliceLayout(0, RIGHT))[None, :]
    o_dim = gl.arange(0, DIM, layout=gl.SliceLayout(1, RIGHT))[:, None]
    here = (o_row < tokens) & (o_dim < DIM)
    b_qt = gl.load(p_q + o_row * ROW + o_dim, mask=here, other=0.0)
    b_kt = gl.load(p_q + KEY_HEADS * DIM + o_row * ROW + o_dim, mask=here, other=0.0)
    b_kk = products(b_k, b_kt, MMA, COLUMNS)
    b_qk = products(b_q, b_kt, MMA, COLUMNS)
    b_qq = products(b_q, b_qt, MMA, COLUMNS)
    b_per_k, b_per_q = per_length(b_kk, o_i, o_j), per_length(b_qq, o_i, o_j) * DIM**-0.5
    b_all_k, b_all_q = gl.convert_layout(b_per_k, ALL), gl.convert_layout(b_per_q, ALL)
    place = i_span * HEADS + i_head
    p_scale = p_scales + place * (3 * W) + o_token
    gl.store(p_scale, b_carried * b_per_k)
    gl.store(p_scale + W, b_carried * b_per_q)
    gl.store(p_scale + 2 * W, b_g)
    b_pair = b_decay * b_per_k[None, :]
    b_lower = gl.where(o_i > o_j, (b_all_beta * b_all_k)[:, None] * b_pair * b_kk, 0.0)
    b_mix = gl.where(o_i >= o_j, b_all_q[:, None] * b_pair * b_qk, 0.0)
    b_x, b_reads = solved(b_lower, b_mix, b_beta, o_i, o_j, ROWS)
    p_square = p_parts + place * (6 * W * W) + o_j * W + o_i
    store_in_three(p_square, b_all_k[:, None] * b_x, W * W)
    store_in_three(p_square + 3 * W * W, b_reads, W * W)
