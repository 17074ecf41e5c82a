"""RMSNorm in one pass over memory with the residual's addition before and the 1x128 quantisation after.

Knows no layers and no products; an addend in several parts is what a split-K product leaves.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sparkle.kernels import reference
from sparkle.kernels.checks import (
    FLOATS,
    require_dense,
    require_dtype,
    require_one_device,
    require_shape,
)
from sparkle.kernels.jit import Block, Pointer, constexpr, jit, tl
from sparkle.kernels.launch_order import start_next_then_wait, wait_then_start_next
from sparkle.kernels.quantise import (
    GROUP,
    Fp8Rows,
    empty_rows,
    quantise_groups,
    quantise_rows_reference,
    require_groups,
)
from sparkle.kernels.times_sigmoid import times_sigmoid

FEW_ROWS = 128
FEW_ROWS_WARPS = 32  # with few programs the time is that of one, whose every load then is one of a thread
# of a thread, so that products lie beside it; told nothing, the assembler has loads wait for one another
FEW_ROWS_REGISTERS = 48
TILE_GROUPS, TILE_WARPS = 8, 4  # with many it is that of all instructions: a tile is one load of a thread
FEW_ROWS_HEADS, MANY_ROWS_HEADS = 8, 16  # of a program of the gated norm, likewise


def add_rms_norm_quantise(
    residual: Tensor, addend: Tensor | None, weight: Tensor, *, eps: float
) -> tuple[Tensor, Fp8Rows]:
    """h = residual + Σ addend; y = h / sqrt(mean(h²) + eps) · (1 + weight); returns (h, y in 1x128 e4m3).

    residual bfloat16 [M, D], dense, D a multiple of 128; addend bfloat16 or float32 [S, M, D], dense, its S
    parts are added first, in order, in float32; none is the first layer's. weight float [D]. h is rounded to
    bfloat16 and the norm is taken of the rounded h; y is float32 until it is quantised. Without an addend h
    is `residual`.
    """
    _check_norm(residual, addend, weight)
    require_groups("residual", residual)
    if residual.is_cuda:
        return add_rms_norm_quantise_triton(residual, addend, weight, eps=eps, pdl=True)
    return add_rms_norm_quantise_reference(residual, addend, weight, eps=eps)


def add_rms_norm_both(
    residual: Tensor, addend: Tensor | None, weight: Tensor, *, eps: float
) -> tuple[Tensor, Tensor, Fp8Rows]:
    """As add_rms_norm_quantise, and y rounded to bfloat16 too, for a product that is not quantised.

    Returns (h bfloat16 [M, D], y bfloat16 [M, D], y in 1x128 e4m3); both forms of y come from its float32.
    """
    _check_norm(residual, addend, weight)
    require_groups("residual", residual)
    if residual.is_cuda:
        return add_rms_norm_both_triton(residual, addend, weight, eps=eps, pdl=True)
    return add_rms_norm_both_reference(residual, addend, weight, eps=eps)


def gated_rms_norm_quantise(x: Tensor, gate: Tensor, weight: Tensor, *, eps: float) -> Fp8Rows:
    """y = x / sqrt(mean(x²) + eps) · weight · SiLU(gate) per head, in float32, then 1x128 e4m3: a head is a
    group.

    x float [M, H, 128], dense; gate float [M, H, 128], rows may be strided (it is part of a wider product);
    weight float [128]. Returns [M, H·128].
    """
    for name, tensor in (("x", x), ("gate", gate)):
        require_dtype(name, tensor, *FLOATS)
        require_shape(name, tensor, x.shape[0], None, GROUP)
    require_dense("x", x)
    require_shape("gate", gate, *x.shape)
    if gate.stride(2) != 1 or gate.stride(1) != GROUP:
        raise ValueError(f"gate has strides {list(gate.stride())} but heads must be dense: [any, {GROUP}, 1]")
    require_dtype("weight", weight, *FLOATS)
    require_shape("weight", weight, GROUP)
    require_one_device(x=x, gate=gate, weight=weight)
    if x.is_cuda:
        return gated_rms_norm_quantise_triton(x, gate, weight, eps=eps, pdl=True)
    return gated_rms_norm_quantise_reference(x, gate, weight, eps=eps)


def add_rms_norm_quantise_reference(
    residual: Tensor, addend: Tensor | None, weight: Tensor, *, eps: float
) -> tuple[Tensor, Fp8Rows]:
    """See add_rms_norm_quantise."""
    total = _add_reference(residual, addend)
    return total, quantise_rows_reference(reference.rms_norm(total.float(), weight, eps=eps))


def add_rms_norm_both_reference(
    residual: Tensor, addend: Tensor | None, weight: Tensor, *, eps: float
) -> tuple[Tensor, Tensor, Fp8Rows]:
    """See add_rms_norm_both."""
    total = _add_reference(residual, addend)
    normed = reference.rms_norm(total.float(), weight, eps=eps)
    return total, normed.to(residual.dtype), quantise_rows_reference(normed)


def gated_rms_norm_quantise_reference(x: Tensor, gate: Tensor, weight: Tensor, *, eps: float) -> Fp8Rows:
    """See gated_rms_norm_quantise."""
    return quantise_rows_reference(reference.gated_rms_norm(x.float(), gate, weight, eps=eps).flatten(1))


def add_rms_norm_quantise_triton(
    residual: Tensor, addend: Tensor | None, weight: Tensor, *, eps: float, pdl: bool
) -> tuple[Tensor, Fp8Rows]:
    """Launches the kernel of add_rms_norm_quantise; `pdl`: as a programmatic dependent launch."""
    out = empty_rows(residual.shape[0], residual.shape[1], residual.device)
    total = residual if addend is None else torch.empty_like(residual)
    _launch_norm(residual, addend, weight, total, None, out, eps=eps, pdl=pdl)
    return total, out


def add_rms_norm_both_triton(
    residual: Tensor, addend: Tensor | None, weight: Tensor, *, eps: float, pdl: bool
) -> tuple[Tensor, Tensor, Fp8Rows]:
    """Launches the kernel of add_rms_norm_both; `pdl`: as a programmatic dependent launch."""
    out = empty_rows(residual.shape[0], residual.shape[1], residual.device)
    normed = torch.empty_like(residual)
    total = residual if addend is None else torch.empty_like(residual)
    _launch_norm(residual, addend, weight, total, normed, out, eps=eps, pdl=pdl)
    return total, normed, out


def gated_rms_norm_quantise_triton(
    x: Tensor, gate: Tensor, weight: Tensor, *, eps: float, pdl: bool
) -> Fp8Rows:
    """Launches the kernel of gated_rms_norm_quantise; `pdl`: as a programmatic dependent launch."""
    rows, heads, _ = x.shape
    out = empty_rows(rows, heads * GROUP, x.device)
    if rows:
        heads_per_program = FEW_ROWS_HEADS if rows <= FEW_ROWS else MANY_ROWS_HEADS
        gated_rms_norm_kernel[rows, -(-heads // heads_per_program)](
            x,
            gate,
            weight,
            out.values,
            out.scales,
            rows,
            heads,
            gate.stride(0),
            eps,
            HEADS=heads_per_program,
            PDL=pdl,
            num_warps=4,
            launch_pdl=pdl,
        )
    return out


def _check_norm(residual: Tensor, addend: Tensor | None, weight: Tensor) -> None:
    require_dtype("residual", residual, torch.bfloat16)
    require_shape("residual", residual, None, None)
    require_dense("residual", residual)
    if addend is not None:
        require_dtype("addend", addend, *FLOATS)
        require_shape("addend", addend, None, *residual.shape)
        require_dense("addend", addend)
        require_one_device(residual=residual, addend=addend)
    require_dtype("weight", weight, *FLOATS)
    require_shape("weight", weight, residual.shape[1])
    require_one_device(residual=residual, weight=weight)


def _add_reference(residual: Tensor, addend: Tensor | None) -> Tensor:
    if addend is None:
        return residual
    # part after part: the order is part of the formula, a library's sum chooses its own
    total = torch.zeros_like(residual, dtype=torch.float32)
    for part in addend.unbind(0):
        total = total + part.float()
    return (residual.float() + total).to(residual.dtype)


def _launch_norm(
    residual: Tensor,
    addend: Tensor | None,
    weight: Tensor,
    total: Tensor,
    normed: Tensor | None,
    quantised: Fp8Rows,
    *,
    eps: float,
    pdl: bool,
) -> None:
    rows, columns = residual.shape
    groups, few = columns // GROUP, rows <= FEW_ROWS
    tile = 1 << (groups - 1).bit_length() if few else TILE_GROUPS
    if rows:
        add_rms_norm_kernel[(rows,)](
            residual,
            addend,
            weight,
            total,
            normed,
            quantised.values,
            quantised.scales,
            rows,
            eps,
            COLUMNS=columns,
            GROUPS=tile,
            TILES=-(-groups // tile),
            PARTS=0 if addend is None else addend.shape[0],
            ROUND=normed is not None,
            PDL=pdl,
            num_warps=FEW_ROWS_WARPS if few else TILE_WARPS,
            maxnreg=FEW_ROWS_REGISTERS if few else None,
            launch_pdl=pdl,
        )


@jit("rows")
def add_rms_norm_kernel(
    p_residual: Pointer,  # bfloat16 [rows, COLUMNS]
    p_addend: Pointer,  # float [PARTS, rows, COLUMNS]
    p_weight: Pointer,  # float [COLUMNS]
    p_total: Pointer,  # bfloat16 [rows, COLUMNS]
    p_normed: Pointer,  # bfloat16 [rows, COLUMNS]
    p_values: Pointer,  # e4m3 [rows, COLUMNS]
    p_scales: Pointer,  # float32 [COLUMNS / 128, rows]
    rows: int,
    eps: float,
    COLUMNS: constexpr,
    GROUPS: constexpr,  # of a tile, a power of two
    TILES: constexpr,
    PARTS: constexpr,
    ROUND: constexpr,
    PDL: constexpr,
) -> None:
    i_row = tl.program_id(0).to(tl.int64)
    o_group = tl.arange(0, GROUPS)
    o_column = o_group[:, None] * 128 + tl.arange(0, 128)[None, :]  # [GROUPS, 128]
    # the weight is nobody's output: it may be read before the kernel in front has ended
    b_weight = tl.load(p_weight + o_column, mask=o_column < COLUMNS, other=0.0)
    if PDL:
        wait_then_start_next()
    # a kernel knows no lists and no starred tuples
    tiles: Block = ()
    b_squares = tl.zeros((GROUPS, 128), tl.float32)
    for i_tile in tl.static_range(TILES):
        o_tile = i_tile * GROUPS * 128 + o_column
        o_x, inside = i_row * COLUMNS + o_tile, o_tile < COLUMNS
        b_h = tl.load(p_residual + o_x, mask=inside, other=0.0).to(tl.float32)
        if PARTS > 0:
            b_sum = tl.load(p_addend + o_x, mask=inside, other=0.0).to(tl.float32)
            for i_part in tl.static_range(1, PARTS):
                p_part = p_addend + i_part * tl.cast(rows, tl.int64) * COLUMNS
                b_sum += tl.load(p_part + o_x, mask=inside, other=0.0).to(tl.float32)
            b_rounded = (b_h + b_sum).to(tl.bfloat16)
            tl.store(p_total + o_x, b_rounded, mask=inside)
            b_h = b_rounded.to(tl.float32)
        b_squares += b_h * b_h
        tiles = tiles + (b_h,)  # noqa: RUF005
    mean = tl.sum(tl.sum(b_squares, axis=1), axis=0) / COLUMNS
    inverse = tl.rsqrt(mean + eps)
    for i_tile in tl.static_range(TILES):
        o_tile = i_tile * GROUPS * 128 + o_column
        o_x, inside = i_row * COLUMNS + o_tile, o_tile < COLUMNS
        if i_tile > 0:
            b_weight = tl.load(p_weight + o_tile, mask=inside, other=0.0)
        b_y = tiles[i_tile] * inverse * (1.0 + b_weight.to(tl.float32))
        if ROUND:
            tl.store(p_normed + o_x, b_y.to(tl.bfloat16), mask=inside)
        b_values, b_scales = quantise_groups(b_y)
        tl.store(p_values + o_x, b_values, mask=inside)
        o_scale = i_tile * GROUPS + o_group
        tl.store(p_scales + o_scale * rows + i_row, b_scales, mask=o_scale * 128 < COLUMNS)


@jit("rows")
def gated_rms_norm_kernel(
    p_x: Pointer,  # float [rows, heads, 128]
    p_gate: Pointer,  # float [rows, heads, 128], rows of stride stride_gate
    p_weight: Pointer,  # float [128]
    p_values: Pointer,  # e4m3 [rows, heads * 128]
    p_scales: Pointer,  # float32 [heads, rows]
    rows: int,
    heads: int,
    stride_gate: int,
    eps: float,
    HEADS: constexpr,
    PDL: constexpr,
) -> None:
    i_row = tl.program_id(0).to(tl.int64)
    o_head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    o_lane = tl.arange(0, 128)
    o_column = o_head[:, None] * 128 + o_lane[None, :]
    inside = o_head[:, None] < heads
    b_weight = tl.load(p_weight + o_lane).to(tl.float32)
    if PDL:
        start_next_then_wait()
    b_x = tl.load(p_x + i_row * heads * 128 + o_column, mask=inside, other=0.0).to(tl.float32)
    b_gate = tl.load(p_gate + i_row * stride_gate + o_column, mask=inside, other=0.0).to(tl.float32)
    b_mean = tl.sum(b_x * b_x, axis=1) / 128
    b_y = b_x * tl.rsqrt(b_mean + eps)[:, None] * b_weight[None, :]
    b_values, b_scales = quantise_groups(b_y * times_sigmoid(b_gate, b_gate))
    tl.store(p_values + i_row * heads * 128 + o_column, b_values, mask=inside)
    tl.store(p_scales + o_head * rows + i_row, b_scales, mask=o_head < heads)
