"""Two-tap convolutions inside blocks of rows, each row with taps of its own. Knows no layers, no products.

out[i, c] = Σ_t (base[t, c] + dynamic[i, t, group of c]) · x[i - t, c] for t of 0 and 1, in float32; nothing
stands before a block's first row (the draft model of the package dflash 0.1.0). In front of a product the
result is quantised; behind one the product's parts are convolved and added to the residual.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sparkle.kernels.checks import FLOATS, require_dense, require_dtype, require_one_device, require_shape
from sparkle.kernels.jit import Block, Pointer, constexpr, jit, tl
from sparkle.kernels.launch_order import start_next_then_wait
from sparkle.kernels.quantise import (
    GROUP,
    Fp8Rows,
    empty_rows,
    quantise_rows_reference,
    require_groups,
)

GROUPS_PER_PROGRAM = 8


@dataclass(frozen=True, slots=True)
class BlockTaps:
    """The taps of M rows in blocks of `width`; each of G groups of neighbouring channels has its own."""

    base: Tensor
    """float32 [2, D], dense: of the row itself and of the row before it."""
    dynamic: Tensor
    """float32 [S, M, 2, G]: S parts, which are added in order; all but the last dimension may be strided."""
    width: int
    """Rows of a block; M is a multiple of it."""


def block_conv(x: Tensor, taps: BlockTaps) -> Tensor:
    """The formula by the reference: x float [M, D], dense, to its own dtype, rounded once."""
    _check("x", x, taps)
    return convolved(x.float(), taps).to(x.dtype)


def block_conv_quantise(x: Tensor, taps: BlockTaps) -> Fp8Rows:
    """x bfloat16 [M, D], dense, convolved and quantised in 1x128 groups from float32; D / G divides 128."""
    _check("x", x, taps)
    require_dtype("x", x, torch.bfloat16)
    _require_groups("x", x, taps)
    if x.is_cuda:
        return block_conv_quantise_triton(x, taps, pdl=True)
    return block_conv_quantise_reference(x, taps)


def block_conv_add(residual: Tensor, parts: Tensor, taps: BlockTaps) -> Tensor:
    """residual + convolved Σ parts, rounded to bfloat16 once: [M, D].

    residual bfloat16 [M, D], dense, D a multiple of 128 that D / G divides; parts bfloat16 or float32
    [P, M, D], dense, added first, in order, in float32.
    """
    _check("residual", residual, taps)
    require_dtype("residual", residual, torch.bfloat16)
    _require_groups("residual", residual, taps)
    require_dtype("parts", parts, *FLOATS)
    require_shape("parts", parts, None, *residual.shape)
    require_dense("parts", parts)
    require_one_device(residual=residual, parts=parts)
    if residual.is_cuda:
        return block_conv_add_triton(residual, parts, taps, pdl=True)
    return block_conv_add_reference(residual, parts, taps)


def block_conv_quantise_reference(x: Tensor, taps: BlockTaps) -> Fp8Rows:
    """See block_conv_quantise."""
    return quantise_rows_reference(convolved(x.float(), taps))


def block_conv_add_reference(residual: Tensor, parts: Tensor, taps: BlockTaps) -> Tensor:
    """See block_conv_add."""
    return (residual.float() + convolved(_added(parts), taps)).bfloat16()


def convolved(x: Tensor, taps: BlockTaps) -> Tensor:
    """The formula above: x float32 or float64 [M, D] to the same."""
    dynamic = _added(taps.dynamic).to(x.dtype)  # [M, 2, G]
    groups = dynamic.shape[2]
    grouped = x.view(-1, taps.width, groups, x.shape[1] // groups)  # [blocks, width, G, channels of a group]
    both = taps.base.view(2, groups, -1) + dynamic[..., None]
    now, before = both.view(*grouped.shape[:2], 2, *grouped.shape[2:]).unbind(2)
    out = now * grouped
    out[:, 1:] += before[:, 1:] * grouped[:, :-1]
    return out.view(x.shape)


def _added(parts: Tensor) -> Tensor:
    # part after part: the order is part of the formula, a library's sum chooses its own
    total = torch.zeros_like(parts[0], dtype=torch.float32)
    for part in parts.unbind(0):
        total = total + part.float()
    return total


def block_conv_quantise_triton(x: Tensor, taps: BlockTaps, *, pdl: bool) -> Fp8Rows:
    """Launches the kernel of block_conv_quantise; `pdl`: as a programmatic dependent launch."""
    rows, columns = x.shape
    out = empty_rows(rows, columns, x.device)
    if rows:
        block_conv_quantise_kernel[_grid(x)](
            x,
            taps.base,
            taps.dynamic,
            out.values,
            out.scales,
            rows,
            columns,
            taps.width,
            *taps.dynamic.stride()[:3],
            **_sizes(x, taps),
            PDL=pdl,
            num_warps=4,
            launch_pdl=pdl,
        )
    return out


def block_conv_add_triton(residual: Tensor, parts: Tensor, taps: BlockTaps, *, pdl: bool) -> Tensor:
    """Launches the kernel of block_conv_add; `pdl`: as a programmatic dependent launch."""
    rows, columns = residual.shape
    out = torch.empty_like(residual)
    if rows:
        block_conv_add_kernel[_grid(residual)](
            residual,
            parts,
            taps.base,
            taps.dynamic,
            out,
            rows,
            columns,
            taps.width,
            *taps.dynamic.stride()[:3],
            **_sizes(residual, taps),
            PARTS=parts.shape[0],
            PDL=pdl,
            num_warps=4,
            launch_pdl=pdl,
        )
    return out


def _grid(x: Tensor) -> tuple[int, int]:
    return x.shape[0], -(-x.shape[1] // (GROUP * GROUPS_PER_PROGRAM))


def _sizes(x: Tensor, taps: BlockTaps) -> dict[str, int]:
    """The constants that both kernels take."""
    return {
        "GROUPS": GROUPS_PER_PROGRAM,
        "CHANNELS": x.shape[1] // taps.dynamic.shape[3],
        "TAP_PARTS": taps.dynamic.shape[0],
    }


def _check(name: str, x: Tensor, taps: BlockTaps) -> None:
    require_dtype(name, x, *FLOATS)
    require_shape(name, x, None, None)
    require_dense(name, x)
    rows, columns = x.shape
    require_dtype("taps.base", taps.base, torch.float32)
    require_shape("taps.base", taps.base, 2, columns)
    require_dense("taps.base", taps.base)
    require_dtype("taps.dynamic", taps.dynamic, torch.float32)
    require_shape("taps.dynamic", taps.dynamic, None, rows, 2, None)
    groups = taps.dynamic.shape[3]
    if groups == 0 or columns % groups or taps.dynamic.stride(3) != 1:
        raise ValueError(
            f"taps.dynamic has {groups} groups of stride {taps.dynamic.stride(3)} but they must be dense, "
            f"and divide {columns} columns"
        )
    if taps.width < 1 or rows % taps.width:
        raise ValueError(f"taps.width is {taps.width} but {name} has {rows} rows, not a multiple of it")
    require_one_device(x=x, base=taps.base, dynamic=taps.dynamic)


def _require_groups(name: str, x: Tensor, taps: BlockTaps) -> None:
    """What the kernels take: groups of 128 columns, and of channels that lie in one of them."""
    require_groups(name, x)
    channels = x.shape[1] // taps.dynamic.shape[3]
    if GROUP % channels:
        raise ValueError(f"taps.dynamic has one tap for {channels} columns but these must divide {GROUP}")


@jit()
def columns_of(GROUPS: constexpr, CHANNELS: constexpr) -> Block:
    """int32 [GROUPS, 128 / CHANNELS, CHANNELS]: the columns of this program, by group of channels."""
    o_group = tl.program_id(1) * GROUPS + tl.arange(0, GROUPS)
    o_conv = o_group[:, None] * (128 // CHANNELS) + tl.arange(0, 128 // CHANNELS)[None, :]
    return o_conv[:, :, None] * CHANNELS + tl.arange(0, CHANNELS)[None, None, :]


@jit()
def dynamic_tap(
    p_dynamic: Pointer,
    columns: Block,
    stride_part: Block,
    GROUPS: constexpr,
    CHANNELS: constexpr,
    TAP_PARTS: constexpr,
) -> Block:
    """float32 [GROUPS, 128 / CHANNELS, 1]: one row's tap of these groups of channels."""
    o_group = tl.program_id(1) * GROUPS + tl.arange(0, GROUPS)
    o_conv = o_group[:, None] * (128 // CHANNELS) + tl.arange(0, 128 // CHANNELS)[None, :]
    inside = o_conv * CHANNELS < columns
    b_sum = tl.zeros((GROUPS, 128 // CHANNELS), tl.float32)
    for i_part in tl.static_range(TAP_PARTS):
        b_sum += tl.load(p_dynamic + i_part * stride_part + o_conv, mask=inside, other=0.0)
    return b_sum[:, :, None]


@jit("rows", "width")
def block_conv_quantise_kernel(
    p_x: Pointer,  # bfloat16 [rows, columns]
    p_base: Pointer,  # float32 [2, columns]
    p_dynamic: Pointer,  # float32 [TAP_PARTS, rows, 2, columns / CHANNELS], of strides stride_*, 1
    p_values: Pointer,  # e4m3 [rows, columns]
    p_scales: Pointer,  # float32 [columns / 128, rows]
    rows: int,
    columns: int,
    width: int,
    stride_part: int,
    stride_row: int,
    stride_tap: int,
    GROUPS: constexpr,
    CHANNELS: constexpr,
    TAP_PARTS: constexpr,
    PDL: constexpr,
) -> None:
    i_row = tl.program_id(0).to(tl.int64)
    o_column = columns_of(GROUPS, CHANNELS)
    inside = o_column < columns
    # the base is nobody's output: it may be read before the kernel in front has ended
    b_now = tl.load(p_base + o_column, mask=inside, other=0.0)
    b_before = tl.load(p_base + columns + o_column, mask=inside, other=0.0)
    if PDL:
        start_next_then_wait()
    p_tap = p_dynamic + i_row * stride_row
    b_now += dynamic_tap(p_tap, columns, stride_part, GROUPS, CHANNELS, TAP_PARTS)
    b_before += dynamic_tap(p_tap + stride_tap, columns, stride_part, GROUPS, CHANNELS, TAP_PARTS)
    p_row = p_x + i_row * columns + o_column
    b_x = tl.load(p_row, mask=inside, other=0.0).to(tl.float32)
    b_x_before = tl.load(p_row - columns, mask=inside & (i_row % width > 0), other=0.0).to(tl.float32)
    b_y = b_now * b_x + b_before * b_x_before
    # as quantise_groups, but not reshaped for it: of what it reshapes Triton 3.6 takes a wrong maximum
    b_amax = tl.maximum(tl.max(tl.max(tl.abs(b_y), axis=2), axis=1), 1e-10)
    b_values = (b_y * tl.div_rn(448.0, b_amax)[:, None, None]).to(tl.float8e4nv)
    tl.store(p_values + i_row * columns + o_column, b_values, mask=inside)
    o_group = tl.program_id(1) * GROUPS + tl.arange(0, GROUPS)
    p_scale = p_scales + o_group * rows + i_row
    tl.store(p_scale, tl.div_rn(b_amax, 448.0), mask=o_group * 128 < columns)


@jit("rows", "width")
def block_conv_add_kernel(
    p_residual: Pointer,  # bfloat16 [rows, columns]
    p_parts: Pointer,  # float [PARTS, rows, columns]
    p_base: Pointer,  # float32 [2, columns]
    p_dynamic: Pointer,  # float32 [TAP_PARTS, rows, 2, columns / CHANNELS], of strides stride_*, 1
    p_out: Pointer,  # bfloat16 [rows, columns]
    rows: int,
    columns: int,
    width: int,
    stride_part: int,
    stride_row: int,
    stride_tap: int,
    GROUPS: constexpr,
    CHANNELS: constexpr,
    TAP_PARTS: constexpr,
    PARTS: constexpr,
    PDL: constexpr,
) -> None:
    i_row = tl.program_id(0).to(tl.int64)
    o_column = columns_of(GROUPS, CHANNELS)
    inside = o_column < columns
    b_now = tl.load(p_base + o_column, mask=inside, other=0.0)
    b_before = tl.load(p_base + columns + o_column, mask=inside, other=0.0)
    if PDL:
        start_next_then_wait()
    p_tap = p_dynamic + i_row * stride_row
    b_now += dynamic_tap(p_tap, columns, stride_part, GROUPS, CHANNELS, TAP_PARTS)
    b_before += dynamic_tap(p_tap + stride_tap, columns, stride_part, GROUPS, CHANNELS, TAP_PARTS)
    follows = inside & (i_row % width > 0)
    b_x = tl.zeros(o_column.shape, tl.float32)
    b_x_before = tl.zeros(o_column.shape, tl.float32)
    for i_part in tl.static_range(PARTS):
        p_row = p_parts + (i_part * rows + i_row) * columns + o_column
        b_x += tl.load(p_row, mask=inside, other=0.0).to(tl.float32)
        b_x_before += tl.load(p_row - columns, mask=follows, other=0.0).to(tl.float32)
    o_out = i_row * columns + o_column
    b_h = tl.load(p_residual + o_out, mask=inside, other=0.0).to(tl.float32)
    b_h += b_now * b_x + b_before * b_x_before
    tl.store(p_out + o_out, b_h.to(tl.bfloat16), mask=inside)
