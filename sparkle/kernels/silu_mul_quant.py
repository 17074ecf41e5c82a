"""SiLU(gate) · up of the MLP, quantised in the same pass over memory. Knows no product."""

from __future__ import annotations

from torch import Tensor

from sparkle.kernels import reference
from sparkle.kernels.checks import FLOATS, require_dtype, require_shape
from sparkle.kernels.jit import Pointer, constexpr, jit, tl
from sparkle.kernels.launch_order import start_next_then_wait
from sparkle.kernels.quantise import (
    GROUP,
    GROUPS_PER_PROGRAM,
    Fp8Rows,
    empty_rows,
    quantise_groups,
    quantise_rows_reference,
    require_groups,
)
from sparkle.kernels.times_sigmoid import times_sigmoid

WARPS = 2  # two loads of a thread: what comes once a program counts half


def silu_mul_quantise(gate_up: Tensor) -> Fp8Rows:
    """y = SiLU(gate) · up in float32, then 1x128 e4m3 without a rounding between.

    gate_up float [M, 2N], dense, the gate's N columns first, N a multiple of 128; returns [M, N].
    """
    require_dtype("gate_up", gate_up, *FLOATS)
    require_shape("gate_up", gate_up, None, None)
    if gate_up.shape[1] % (2 * GROUP) or not gate_up.is_contiguous():
        raise ValueError(
            f"gate_up has shape {list(gate_up.shape)}, strides {list(gate_up.stride())} "
            f"but must be dense with a multiple of {2 * GROUP} columns"
        )
    require_groups("gate_up", gate_up)
    return (
        silu_mul_quantise_triton(gate_up, pdl=True)
        if gate_up.is_cuda
        else silu_mul_quantise_reference(gate_up)
    )


def silu_mul_quantise_reference(gate_up: Tensor) -> Fp8Rows:
    """See silu_mul_quantise."""
    return quantise_rows_reference(reference.silu_mul(gate_up.float()))


def silu_mul_quantise_triton(gate_up: Tensor, *, pdl: bool) -> Fp8Rows:
    """Launches the kernel of silu_mul_quantise; `pdl`: as a programmatic dependent launch."""
    rows, columns = gate_up.shape[0], gate_up.shape[1] // 2
    out = empty_rows(rows, columns, gate_up.device)
    if rows:
        silu_mul_quantise_kernel[rows, -(-columns // (GROUP * GROUPS_PER_PROGRAM))](
            gate_up,
            out.values,
            out.scales,
            rows,
            columns,
            GROUPS=GROUPS_PER_PROGRAM,
            PDL=pdl,
            num_warps=WARPS,
            launch_pdl=pdl,
        )
    return out


@jit("rows")
def silu_mul_quantise_kernel(
    p_gate_up: Pointer,  # float [rows, 2 * columns]
    p_values: Pointer,  # e4m3 [rows, columns]
    p_scales: Pointer,  # float32 [columns / 128, rows]
    rows: int,
    columns: int,
    GROUPS: constexpr,
    PDL: constexpr,
) -> None:
    i_row = tl.program_id(0).to(tl.int64)
    o_group = tl.program_id(1) * GROUPS + tl.arange(0, GROUPS)
    o_column = o_group[:, None] * 128 + tl.arange(0, 128)[None, :]
    inside = o_column < columns
    p_gate = p_gate_up + i_row * 2 * columns + o_column
    if PDL:
        start_next_then_wait()
    b_gate = tl.load(p_gate, mask=inside, other=0.0).to(tl.float32)
    b_up = tl.load(p_gate + columns, mask=inside, other=0.0).to(tl.float32)
    b_values, b_scales = quantise_groups(times_sigmoid(b_gate, b_gate) * b_up)
    tl.store(p_values + i_row * columns + o_column, b_values, mask=inside)
    tl.store(p_scales + o_group * rows + i_row, b_scales, mask=o_group * 128 < columns)
