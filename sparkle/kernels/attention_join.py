"""Joins the parts of a split attention by their sums, gates the result, and quantises it where asked.

One program a row, head and group of 128 dimensions. Knows no cache and no spans.
"""

from __future__ import annotations

from torch import Tensor

from sparkle.kernels.attention_parts import Parts
from sparkle.kernels.jit import Pointer, constexpr, jit, tl
from sparkle.kernels.launch_order import start_next_then_wait
from sparkle.kernels.quantise import Fp8Rows, quantise_groups

LANES = 128
"""Dimensions a program joins: the columns that share a scale."""
PARTS_AT_ONCE = 16
WARPS = 1


def join_parts(parts: Parts, gate: Tensor | None, out: Tensor | Fp8Rows, *, pdl: bool) -> None:
    """Writes `out`, float [T, H, D] or e4m3 in groups [T, H · D], D whole groups.

    gate float [T, H, D], rows and heads of any stride. Rows without a part become anything.
    """
    rows, heads, splits, head_dim = parts.values.shape
    lanes = min(LANES, head_dim)
    values, scales = (out.values, out.scales) if isinstance(out, Fp8Rows) else (out, None)
    join_parts_kernel[heads * (head_dim // lanes), rows](
        parts.values,
        parts.sums,
        gate,
        values,
        scales,
        rows,
        0 if gate is None else gate.stride(0),
        0 if gate is None else gate.stride(1),
        GATED=gate is not None,
        QUANTISE=scales is not None,
        DIM=head_dim,
        LANES=lanes,
        SPLITS=splits,
        PADDED=1 << (splits - 1).bit_length(),
        STEP=min(PARTS_AT_ONCE, 1 << (splits - 1).bit_length()),
        PDL=pdl,
        num_warps=WARPS,
        launch_pdl=pdl,
    )


@jit("rows")
def join_parts_kernel(
    p_parts: Pointer,  # float [rows, H, SPLITS, DIM]
    p_sums: Pointer,  # float32 [rows, H, SPLITS]
    p_gate: Pointer,  # [rows, H, DIM], of strides stride_row, stride_head, 1
    p_out: Pointer,  # [rows, H, DIM]
    p_scales: Pointer,  # float32 [H * DIM / 128, rows]
    rows: int,
    stride_row: int,
    stride_head: int,
    GATED: constexpr,
    QUANTISE: constexpr,
    DIM: constexpr,
    LANES: constexpr,
    SPLITS: constexpr,
    PADDED: constexpr,
    STEP: constexpr,
    PDL: constexpr,
) -> None:
    i_group, i_row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    i_head = i_group // (DIM // LANES)
    o_dim = (i_group % (DIM // LANES)) * LANES + tl.arange(0, LANES)
    i_line = i_row * (tl.num_programs(0) // (DIM // LANES)) + i_head
    if PDL:
        start_next_then_wait()
    b_gate = tl.zeros((LANES,), tl.float32)
    if GATED:
        b_gate = tl.load(p_gate + i_row * stride_row + i_head * stride_head + o_dim).to(tl.float32)
    o_all = tl.arange(0, PADDED)
    b_logs = tl.load(p_sums + i_line * SPLITS + o_all, mask=o_all < SPLITS, other=-float("inf"))
    b_top = tl.max(b_logs, axis=0)
    b_sum = tl.sum(tl.exp2(b_logs - b_top), axis=0)
    b_out = tl.zeros((LANES,), tl.float32)
    for i_part in tl.static_range(0, SPLITS, STEP):
        # sums and parts are asked for at once; a part without a sum was never written
        o_part = i_part + tl.arange(0, STEP)
        b_log = tl.load(p_sums + i_line * SPLITS + o_part, mask=o_part < SPLITS, other=-float("inf"))
        p_part = p_parts + (i_line * SPLITS + o_part)[:, None] * DIM + o_dim[None, :]
        b_part = tl.load(p_part, mask=o_part[:, None] < SPLITS, other=0.0).to(tl.float32)
        b_weight = tl.exp2(b_log - b_top)
        b_out += tl.sum(tl.where(b_weight[:, None] > 0.0, b_part * b_weight[:, None], 0.0), axis=0)
    b_out = b_out / b_sum
    if GATED:
        b_out = b_out * tl.sigmoid(b_gate)
    o_out = i_line * DIM + o_dim
    if QUANTISE:
        b_values, b_scales = quantise_groups(b_out[None, :])
        tl.store(p_out + o_out[None, :], b_values)
        tl.store(p_scales + i_group * rows + i_row + tl.arange(0, 1), b_scales)
    else:
        tl.store(p_out + o_out, b_out.to(p_out.dtype.element_ty))
