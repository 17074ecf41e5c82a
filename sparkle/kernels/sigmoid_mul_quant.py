"""Attention's gate, x · sigmoid(gate), quantised in the same pass over memory. Knows no product."""

from __future__ import annotations

from torch import Tensor

from sparkle.kernels.checks import FLOATS, require_dense, require_dtype, require_one_device, require_shape
from sparkle.kernels.jit import Pointer, constexpr, jit, tl
from sparkle.kernels.launch_order import start_next_then_wait
from sparkle.kernels.quantise import (
    GROUP,
    GROUPS_PER_PROGRAM,
    Fp8Rows,
    empty_rows,
    quantise_groups,
    quantise_rows_reference,
)
from sparkle.kernels.times_sigmoid import times_sigmoid

WARPS = 2  # two loads of a thread: what comes once a program counts half


def sigmoid_mul_quantise(x: Tensor, gate: Tensor) -> Fp8Rows:
    """y = x · sigmoid(gate) in float32, then 1x128 e4m3 without a rounding between.

    x float [M, H, D], dense, H·D a multiple of 128; gate float [M, H, D], rows and heads of any stride (it is
    part of a wider product). Returns [M, H·D]. ValueError for any other shape, dtype or stride.
    """
    require_dtype("x", x, *FLOATS)
    require_shape("x", x, None, None, None)
    require_dense("x", x)
    rows, heads, dim = x.shape
    if heads * dim % GROUP or heads * dim == 0:
        raise ValueError(f"x has {heads} heads of {dim} but together they must be a multiple of {GROUP} wide")
    require_dtype("gate", gate, *FLOATS)
    require_shape("gate", gate, rows, heads, dim)
    if gate.stride(2) != 1 and dim > 1:
        raise ValueError(f"gate has strides {list(gate.stride())} but a head must be dense: [any, any, 1]")
    require_one_device(x=x, gate=gate)
    if x.is_cuda:
        return sigmoid_mul_quantise_triton(x, gate, pdl=True)
    return sigmoid_mul_quantise_reference(x, gate)


def sigmoid_mul_quantise_reference(x: Tensor, gate: Tensor) -> Fp8Rows:
    """See sigmoid_mul_quantise."""
    return quantise_rows_reference((x.float() * gate.float().sigmoid()).flatten(1))


def sigmoid_mul_quantise_triton(x: Tensor, gate: Tensor, *, pdl: bool) -> Fp8Rows:
    """Launches the kernel of sigmoid_mul_quantise; `pdl`: as a programmatic dependent launch."""
    rows, heads, dim = x.shape
    columns = heads * dim
    out = empty_rows(rows, columns, x.device)
    if rows:
        sigmoid_mul_quantise_kernel[rows, -(-columns // (GROUP * GROUPS_PER_PROGRAM))](
            x,
            gate,
            out.values,
            out.scales,
            rows,
            columns,
            gate.stride(0),
            gate.stride(1),
            DIM=dim,
            GROUPS=GROUPS_PER_PROGRAM,
            PDL=pdl,
            num_warps=WARPS,
            launch_pdl=pdl,
        )
    return out


@jit("rows")
def sigmoid_mul_quantise_kernel(
    p_x: Pointer,  # float [rows, columns]
    p_gate: Pointer,  # float [rows, columns / DIM, DIM], of strides stride_gate, stride_gate_head, 1
    p_values: Pointer,  # e4m3 [rows, columns]
    p_scales: Pointer,  # float32 [columns / 128, rows]
    rows: int,
    columns: int,
    stride_gate: int,
    stride_gate_head: int,
    DIM: constexpr,
    GROUPS: constexpr,
    PDL: constexpr,
) -> None:
    i_row = tl.program_id(0).to(tl.int64)
    o_group = tl.program_id(1) * GROUPS + tl.arange(0, GROUPS)
    o_column = o_group[:, None] * 128 + tl.arange(0, 128)[None, :]
    inside = o_column < columns
    p_g = p_gate + i_row * stride_gate + o_column // DIM * stride_gate_head + o_column % DIM
    if PDL:
        start_next_then_wait()
    b_x = tl.load(p_x + i_row * columns + o_column, mask=inside, other=0.0).to(tl.float32)
    b_gate = tl.load(p_g, mask=inside, other=0.0).to(tl.float32)
    b_values, b_scales = quantise_groups(times_sigmoid(b_x, b_gate))
    tl.store(p_values + i_row * columns + o_column, b_values, mask=inside)
    tl.store(p_scales + o_group * rows + i_row, b_scales, mask=o_group * 128 < columns)
