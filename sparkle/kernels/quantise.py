"""The two FP8 forms of a matrix, and how to quantise: activations in 1x128 groups, weights in 128x128 blocks.

Both hold float8_e4m3fn values and float32 scales; a value stands for value · scale. A scale is amax / 448 of
its group or block, so the largest value becomes e4m3's largest; the quotient is computed as x · (448 / amax).
Knows no product.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from sparkle.kernels.checks import FLOATS, require_dtype, require_one_device, require_shape
from sparkle.kernels.jit import Block, Pointer, constexpr, jit, tl
from sparkle.kernels.launch_order import start_next_then_wait

GROUP = 128
E4M3_MAX = 448.0
AMAX_FLOOR = 1e-10  # a group of zeros has a scale that can be divided by
GROUPS_PER_PROGRAM = 8


@dataclass(frozen=True, slots=True)
class Fp8Rows:
    """An activation: one scale for every 128 columns of a row."""

    values: Tensor
    """float8_e4m3fn [M, K], dense; K is a multiple of 128."""
    scales: Tensor
    """float32 [M, K/128], strides (1, M): the layout torch's scaled_mm takes."""


@dataclass(frozen=True, slots=True)
class Fp8Blocks:
    """A weight: one scale for every block of 128 rows and 128 columns."""

    values: Tensor
    """float8_e4m3fn [N, K], dense; K is a multiple of 128, the last block of rows may be ragged."""
    scales: Tensor
    """float32 [ceil(N/128), K/128], dense."""

    def rows(self, first: int, end: int) -> Fp8Blocks:
        """A view of the rows first..end; `first` begins a block."""
        assert first % GROUP == 0, "a block has one scale"
        return Fp8Blocks(self.values[first:end], self.scales[first // GROUP : -(-end // GROUP)])

    def whole_blocks(self, rows: int) -> Fp8Blocks:
        """A view of the blocks that the first `rows` rows lie in: products want no odd number of rows."""
        return self.rows(0, -(-rows // GROUP) * GROUP)


def quantise_rows(x: Tensor) -> Fp8Rows:
    """An activation in 1x128 groups. x float [M, K], rows may be strided, K a multiple of 128."""
    require_dtype("x", x, *FLOATS)
    require_shape("x", x, None, None)
    require_groups("x", x)
    return quantise_rows_triton(x, pdl=True) if x.is_cuda else quantise_rows_reference(x)


def quantise_blocks(weight: Tensor) -> Fp8Blocks:
    """A weight in 128x128 blocks, once at load. weight float [N, K], K a multiple of 128, N any."""
    require_dtype("weight", weight, *FLOATS)
    require_shape("weight", weight, None, None)
    require_groups("weight", weight)
    return quantise_blocks_triton(weight) if weight.is_cuda else quantise_blocks_reference(weight)


def require_groups(name: str, x: Tensor) -> None:
    """Raises ValueError unless the last dimension is dense and made of whole groups of 128."""
    if x.shape[-1] % GROUP or x.shape[-1] == 0 or x.stride(-1) != 1:
        raise ValueError(
            f"{name} has {x.shape[-1]} columns of stride {x.stride(-1)} "
            f"but must have a multiple of {GROUP} of stride 1"
        )


def require_rows(name: str, x: Fp8Rows) -> None:
    """Raises ValueError unless `x` is what `Fp8Rows` says."""
    require_dtype(f"{name}.values", x.values, torch.float8_e4m3fn)
    require_shape(f"{name}.values", x.values, None, None)
    require_groups(f"{name}.values", x.values)
    rows, columns = x.values.shape
    require_dtype(f"{name}.scales", x.scales, torch.float32)
    require_shape(f"{name}.scales", x.scales, rows, columns // GROUP)
    # strides of dimensions with one entry mean nothing
    if not x.values.is_contiguous() or not x.scales.t().is_contiguous():
        raise ValueError(
            f"{name} has strides {list(x.values.stride())} and {list(x.scales.stride())} "
            f"but must have [{columns}, 1] and [1, {rows}]"
        )


def require_factors(x: Fp8Rows, w: Fp8Blocks) -> None:
    """Raises ValueError unless x · wᵀ can be taken."""
    require_rows("x", x)
    require_blocks("w", w)
    if x.values.shape[1] != w.values.shape[1]:
        raise ValueError(f"x has {x.values.shape[1]} columns but w has {w.values.shape[1]}")
    tensors = {"x.values": x.values, "x.scales": x.scales, "w.values": w.values, "w.scales": w.scales}
    require_one_device(**tensors)


def require_blocks(name: str, w: Fp8Blocks) -> None:
    """Raises ValueError unless `w` is what `Fp8Blocks` says."""
    require_dtype(f"{name}.values", w.values, torch.float8_e4m3fn)
    require_shape(f"{name}.values", w.values, None, None)
    require_groups(f"{name}.values", w.values)
    rows, columns = w.values.shape
    require_dtype(f"{name}.scales", w.scales, torch.float32)
    require_shape(f"{name}.scales", w.scales, -(-rows // GROUP), columns // GROUP)
    if not w.values.is_contiguous() or not w.scales.is_contiguous():
        raise ValueError(
            f"{name} has strides {list(w.values.stride())} and {list(w.scales.stride())} but must be dense"
        )


def empty_rows(rows: int, columns: int, device: torch.device) -> Fp8Rows:
    """Unwritten memory for an activation [rows, columns]."""
    return Fp8Rows(
        torch.empty(rows, columns, dtype=torch.float8_e4m3fn, device=device),
        torch.empty(columns // GROUP, rows, dtype=torch.float32, device=device).t(),
    )


def quantise_rows_reference(x: Tensor) -> Fp8Rows:
    """See quantise_rows."""
    groups = x.float().reshape(x.shape[0], x.shape[1] // GROUP, GROUP)  # [M, K/128, 128]
    amax = groups.abs().amax(dim=-1).clamp_min(AMAX_FLOOR)
    values = (groups * _inverse(amax)[..., None]).flatten(-2).to(torch.float8_e4m3fn)
    return Fp8Rows(values, _scale(amax).t().contiguous().t())


def quantise_blocks_reference(weight: Tensor) -> Fp8Blocks:
    """See quantise_blocks."""
    rows, columns = weight.shape
    whole = F.pad(weight.float(), (0, 0, 0, -rows % GROUP))
    blocks = whole.reshape(-(-rows // GROUP), GROUP, columns // GROUP, GROUP)  # [N/128, 128, K/128, 128]
    amax = blocks.abs().amax(dim=(1, 3)).clamp_min(AMAX_FLOOR)
    values = (blocks * _inverse(amax)[:, None, :, None]).flatten(2).flatten(0, 1)[:rows]
    return Fp8Blocks(values.to(torch.float8_e4m3fn), _scale(amax))


def _inverse(amax: Tensor) -> Tensor:
    # where one side is a number, torch multiplies by a rounded reciprocal
    return torch.full_like(amax, E4M3_MAX) / amax


def _scale(amax: Tensor) -> Tensor:
    return amax / torch.full_like(amax, E4M3_MAX)


def rows_to_float(x: Fp8Rows) -> Tensor:
    """What the values stand for: float32 [M, K]."""
    return x.values.float() * x.scales.repeat_interleave(GROUP, dim=1)


def quantise_rows_triton(x: Tensor, *, pdl: bool) -> Fp8Rows:
    """Launches the kernel of quantise_rows; `pdl`: as a programmatic dependent launch."""
    rows, columns = x.shape
    out = empty_rows(rows, columns, x.device)
    if rows:
        quantise_rows_kernel[rows, -(-columns // (GROUP * GROUPS_PER_PROGRAM))](
            x,
            out.values,
            out.scales,
            rows,
            x.stride(0),
            columns,
            GROUPS=GROUPS_PER_PROGRAM,
            PDL=pdl,
            num_warps=4,
            launch_pdl=pdl,
        )
    return out


def quantise_blocks_triton(weight: Tensor) -> Fp8Blocks:
    """Launches the kernel of quantise_blocks."""
    rows, columns = weight.shape
    blocks = -(-rows // GROUP), columns // GROUP
    values = torch.empty(rows, columns, dtype=torch.float8_e4m3fn, device=weight.device)
    scales = torch.empty(blocks, dtype=torch.float32, device=weight.device)
    if rows:
        quantise_blocks_kernel[blocks](weight, values, scales, rows, columns, weight.stride(0), num_warps=8)
    return Fp8Blocks(values, scales)


@jit()
def quantise_groups(b_y: Block) -> Block:
    """float32 [G, 128] -> e4m3 [G, 128] and float32 scales [G]; called from the kernels that fuse it."""
    # 448 and 1e-10 are E4M3_MAX and AMAX_FLOOR; rounded divisions, so that the reference agrees to the bit
    b_amax = tl.maximum(tl.max(tl.abs(b_y), axis=1), 1e-10)
    b_values = (b_y * tl.div_rn(448.0, b_amax)[:, None]).to(tl.float8e4nv)
    return b_values, tl.div_rn(b_amax, 448.0)


@jit("rows")
def quantise_rows_kernel(
    p_x: Pointer,  # float [rows, columns]
    p_values: Pointer,  # e4m3 [rows, columns]
    p_scales: Pointer,  # float32 [columns / 128, rows]
    rows: int,
    stride_x: int,
    columns: int,
    GROUPS: constexpr,
    PDL: constexpr,
) -> None:
    i_row = tl.program_id(0).to(tl.int64)
    o_group = tl.program_id(1) * GROUPS + tl.arange(0, GROUPS)
    o_column = o_group[:, None] * 128 + tl.arange(0, 128)[None, :]
    inside = o_column < columns
    if PDL:
        start_next_then_wait()
    b_x = tl.load(p_x + i_row * stride_x + o_column, mask=inside, other=0.0).to(tl.float32)
    b_values, b_scales = quantise_groups(b_x)
    tl.store(p_values + i_row * columns + o_column, b_values, mask=inside)
    tl.store(p_scales + o_group * rows + i_row, b_scales, mask=o_group * 128 < columns)


@jit("rows")
def quantise_blocks_kernel(
    p_weight: Pointer,  # float [rows, columns]
    p_values: Pointer,  # e4m3 [rows, columns]
    p_scales: Pointer,  # float32 [ceil(rows / 128), columns / 128]
    rows: int,
    columns: int,
    stride_weight: int,
) -> None:
    i_row, i_column = tl.program_id(0), tl.program_id(1)
    o_row = (i_row * 128 + tl.arange(0, 128)).to(tl.int64)[:, None]
    o_column = (i_column * 128 + tl.arange(0, 128))[None, :]
    inside = o_row < rows
    b_w = tl.load(p_weight + o_row * stride_weight + o_column, mask=inside, other=0.0).to(tl.float32)
    amax = tl.maximum(tl.max(tl.max(tl.abs(b_w), axis=1), axis=0), 1e-10)
    b_values = (b_w * tl.div_rn(448.0, amax)).to(tl.float8e4nv)
    tl.store(p_values + o_row * columns + o_column, b_values, mask=inside)
    tl.store(p_scales + i_row * tl.num_programs(1) + i_column, tl.div_rn(amax, 448.0))
