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
from sparkle.kernels.jit import Block, Pointer, constexpr, jit, tl
from sparkle.kernels.softplus import softplus
from sparkle.kernels.unit_lower import inverse_of_16

WARPS = 1
PRECISION = "tf32x3"  # all of it enters the state: as float32


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
        WIDTH=1 << (width - 1).bit_length(),
        PRECISION=PRECISION,
        PDL=pdl,
        num_warps=WARPS,
        num_stages=1,
        launch_pdl=pdl,
    )
    return window


@jit()
def in_three(b_x: Block) -> tuple[Block, Block, Block]:
    """A float32 block as the sum of three in bfloat16, largest first, each cut off from what is left."""
    b_high = (b_x.to(tl.int32, bitcast=True) & -65536).to(tl.float32, bitcast=True)
    b_rest = b_x - b_high
    b_middle = (b_rest.to(tl.int32, bitcast=True) & -65536).to(tl.float32, bitcast=True)
    return b_high.to(tl.bfloat16), b_middle.to(tl.bfloat16), (b_rest - b_middle).to(tl.bfloat16)


@jit()
def store_in_three(p_out: Pointer, b_x: Block, N: constexpr) -> None:
    """Parts of N values each, one behind the other."""
    b_high, b_middle, b_low = in_three(b_x)
    tl.store(p_out, b_high)
    tl.store(p_out + N, b_middle)
    tl.store(p_out + 2 * N, b_low)


@jit()
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
    WIDTH: constexpr,  # of the longest span, up to a power of two
    PRECISION: constexpr,
    PDL: constexpr,
) -> None:
    if PDL:
        # the convolution in front has waited for all before it, so who starts now may read that too
        tl.extra.cuda.gdc_launch_dependents()
    i_head, i_span = tl.program_id(0), tl.program_id(1).to(tl.int64)
    slot = tl.load(p_slots + i_span)
    start = tl.load(p_starts + i_span)
    tokens = tl.load(p_starts + i_span + 1) - start
    o_token, o_dim = tl.arange(0, W), tl.arange(0, DIM)
    o_i, o_j = o_token[:, None], o_token[None, :]
    # the gates are not the convolution's: no need to wait for it
    real = (o_token < tokens) & (slot >= 0)
    p_ba += (start + o_token) * stride_ba + i_head
    b_beta = tl.sigmoid(tl.load(p_ba, mask=real, other=0.0).to(tl.float32))
    b_a = tl.load(p_ba + HEADS, mask=real, other=0.0).to(tl.float32)
    b_rate = tl.exp(tl.load(p_a_log + i_head).to(tl.float32))
    b_g = -b_rate * softplus(b_a + tl.load(p_dt_bias + i_head).to(tl.float32))
    b_beta, b_g = tl.where(real, b_beta, 0.0), tl.where(real, b_g, 0.0)
    b_carried = tl.exp(tl.cumsum(b_g, axis=0))
    # Σ g from j + 1 to i as a product with ones: a difference of running sums would cancel
    b_steps = tl.where(o_j <= o_i, b_g[None, :], 0.0)
    b_decay = tl.exp(tl.dot(b_steps, tl.where(o_i > o_j, 1.0, 0.0), input_precision=PRECISION))
    if PDL:
        tl.extra.cuda.gdc_wait()
    if slot < 0:
        return
    p_q = p_mixed + (start + o_i) * ((2 * KEY_HEADS + HEADS) * DIM)
    p_q += i_head // (HEADS // KEY_HEADS) * DIM + o_dim[None, :]
    b_q = tl.load(p_q, mask=o_i < tokens, other=0.0)
    b_k = tl.load(p_q + KEY_HEADS * DIM, mask=o_i < tokens, other=0.0)
    b_kt = tl.trans(b_k)
    b_kk, b_qk = tl.dot(b_k, b_kt), tl.dot(b_q, b_kt)
    b_qq = tl.dot(b_q, tl.trans(b_q))
    b_per_k = tl.rsqrt(tl.sum(tl.where(o_i == o_j, b_kk, 0.0), axis=0) + 1e-6)
    b_per_q = tl.rsqrt(tl.sum(tl.where(o_i == o_j, b_qq, 0.0), axis=0) + 1e-6) * DIM**-0.5
    b_lower = tl.where(o_i > o_j, (b_beta * b_per_k)[:, None] * b_per_k[None, :] * b_decay * b_kk, 0.0)
    b_writes = tl.where(o_i == o_j, 1.0, 0.0)
    if WIDTH > 1:
        b_writes = inverse_of_16(b_lower, o_i, o_j, PRECISION, WIDTH)
    b_writes *= b_per_k[:, None] * b_beta[None, :]
    b_mix = tl.where(o_i >= o_j, b_per_q[:, None] * b_decay * b_qk, 0.0)
    b_reads = tl.dot(b_mix, b_writes, input_precision=PRECISION)
    place = i_span * HEADS + i_head
    p_scale = p_scales + place * (3 * W) + o_token
    tl.store(p_scale, b_carried * b_per_k)
    tl.store(p_scale + W, b_carried * b_per_q)
    tl.store(p_scale + 2 * W, b_g)
    p_square = p_parts + place * (6 * W * W) + o_j * W + o_i
    store_in_three(p_square, b_writes, W * W)
    store_in_three(p_square + 3 * W * W, b_reads, W * W)
