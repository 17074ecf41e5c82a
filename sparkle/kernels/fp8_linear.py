"""y = x · wᵀ with both in FP8 blocks: our kernels for few rows, torch's scaled_mm for many. Knows no layers.

With few rows the time is that of reading the weights, so the weights are the tensor core's M side (its least
is 64) and the rows its N side (its least is 8, Triton's 16), and K is split where the tiles alone do not fill
the chip. A split leaves float32 partial sums, which the next op or a small kernel adds in a fixed order: no
atomics, so two runs agree to the bit. The kernel here takes any shape, and runs in Triton's interpreter; the
products of a layer of Qwen3.8-27B have one of their own in fp8_few_rows, which is faster.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from sparkle.kernels.checks import FLOATS
from sparkle.kernels.fp8_few_rows import fp8_few_rows
from sparkle.kernels.jit import Block, Pointer, constexpr, jit, tl
from sparkle.kernels.launch_order import fetch_weights_then_wait, start_next_then_wait
from sparkle.kernels.quantise import GROUP, Fp8Blocks, Fp8Rows, require_factors, rows_to_float
from sparkle.kernels.reference import dequantise_blocks
from sparkle.kernels.tuning import MAX_BLOCK_ROWS, LinearSettings, block_rows, linear_settings, ring_settings

SUM_COLUMNS = 1024


def fp8_linear(x: Fp8Rows, w: Fp8Blocks, *, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """y[m, n] = Σ_g xs[m, g] ws[n // 128, g] Σ_{k in group g} x[m, k] w[n, k], the outer sum in float32.

    x [M, K], w [N, K], N a multiple of 16 on the GPU; dtype bfloat16 or float32. Returns dtype [M, N].
    """
    parts = fp8_linear_parts(x, w, dtype=dtype)
    if parts.shape[0] == 1:
        return parts[0]
    return sum_parts_triton(parts, dtype=dtype, pdl=True)


def fp8_linear_parts(x: Fp8Rows, w: Fp8Blocks, *, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """The same product as [S, M, N], to be added over S: float32 where S > 1, `dtype` where S is 1."""
    require_factors(x, w)
    if dtype not in FLOATS:
        raise ValueError(f"dtype is {dtype} but must be {' or '.join(map(str, FLOATS))}")
    rows, (columns, depth) = x.values.shape[0], w.values.shape
    if not x.values.is_cuda:
        return fp8_linear_reference(x, w, dtype=dtype)[None]
    if columns % 16:
        raise ValueError(f"w has {columns} rows but on a GPU they must be a multiple of 16")
    if rows > MAX_BLOCK_ROWS:
        return fp8_linear_scaled_mm(x, w, dtype=dtype)[None]
    ring = ring_settings(columns, depth, rows=rows)
    if ring is not None:
        return fp8_few_rows(x, w, dtype=dtype, settings=ring, pdl=True)
    return fp8_linear_triton(x, w, dtype=dtype, settings=linear_settings(columns, depth, rows=rows), pdl=True)


def fp8_linear_reference(x: Fp8Rows, w: Fp8Blocks, *, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """See fp8_linear."""
    return (rows_to_float(x) @ dequantise_blocks(w.values, w.scales).t()).to(dtype)


def fp8_linear_scaled_mm(x: Fp8Rows, w: Fp8Blocks, *, dtype: torch.dtype) -> Tensor:
    """The product by torch's scaled_mm, which needs a multiple of four rows and groups of K in fours."""
    rows, groups = x.scales.shape
    values, scales, w_scales = x.values, x.scales, w.scales
    if rows % 4:
        values = F.pad(values.view(torch.uint8), (0, 0, 0, -rows % 4)).view(torch.float8_e4m3fn)
        scales = F.pad(scales.t(), (0, -rows % 4)).t()
    if groups % 4:
        w_scales = F.pad(w_scales, (0, -groups % 4))
    result = F.scaled_mm(
        values,
        w.values.t(),
        scale_a=scales,
        scale_recipe_a=F.ScalingType.BlockWise1x128,
        scale_b=w_scales.t(),
        scale_recipe_b=F.ScalingType.BlockWise128x128,
        output_dtype=dtype,
    )
    return result[:rows]


def fp8_linear_triton(
    x: Fp8Rows, w: Fp8Blocks, *, dtype: torch.dtype, settings: LinearSettings, pdl: bool
) -> Tensor:
    """Launches the kernel of fp8_linear_parts; `pdl`: as a programmatic dependent launch."""
    rows, (columns, depth) = x.values.shape[0], w.values.shape
    out = torch.empty(
        settings.split,
        rows,
        columns,
        dtype=dtype if settings.split == 1 else torch.float32,
        device=x.values.device,
    )
    if rows:
        width = block_rows(rows)
        # row tiles first: those that read the same weights run side by side, and read them from the cache
        fp8_linear_kernel[-(-rows // width), -(-columns // settings.block_columns), settings.split](
            x.values,
            x.scales,
            w.values,
            w.scales,
            out,
            rows,
            columns,
            depth,
            -(-depth // (GROUP * settings.split)),
            BN=settings.block_columns,
            BM=width,
            FETCH=settings.fetch,
            PDL=pdl,
            num_warps=settings.warps,
            num_stages=settings.stages,
            launch_pdl=pdl,
        )
    return out


def sum_parts_triton(parts: Tensor, *, dtype: torch.dtype, pdl: bool) -> Tensor:
    """The sum over the first dimension of float32 [S, M, N], dense, in order; `pdl` as above."""
    split, rows, columns = parts.shape
    out = torch.empty(rows, columns, dtype=dtype, device=parts.device)
    total = rows * columns
    if total:
        sum_parts_kernel[(-(-total // SUM_COLUMNS),)](
            parts, out, total, SPLIT=split, COLUMNS=SUM_COLUMNS, PDL=pdl, num_warps=4, launch_pdl=pdl
        )
    return out


@jit()
def block_product(
    p_x: Pointer,
    p_xs: Pointer,
    p_w: Pointer,
    p_ws: Pointer,
    i_n: Block,
    i_m: Block,
    rows: Block,
    columns: Block,
    depth: Block,
    start: Block,
    stop: Block,
    BN: constexpr,
    BM: constexpr,
) -> Block:
    """float32 [BN, BM]: the tile (i_n, i_m) over the groups start..stop of K, columns on the first axis."""
    # beyond the last column the last is read again: no mask on weights, and nothing of it is stored
    o_n = tl.minimum(i_n * BN + tl.arange(0, BN), columns - 1).to(tl.int64)
    o_m = i_m * BM + tl.arange(0, BM)
    # rows are masked: all programs reading one row sixteen times would queue for the same lines of the cache
    row = o_m < rows
    o_k = start * 128 + tl.arange(0, 128)
    p_w += o_n[:, None] * depth + o_k[None, :]
    p_x += o_m[None, :] * depth + o_k[:, None]
    # a program's weight rows share one scale, or each of more than 128 has its own
    o_block = i_n * BN // 128 if BN <= 128 else o_n // 128
    p_ws += o_block * (depth // 128) + start
    p_xs += o_m + start * rows
    b_y = tl.zeros((BN, BM), tl.float32)
    # the pipeline takes only what the tensor core reads: scales are asked for one group ahead by hand
    b_ws = tl.load(p_ws, mask=start < stop, other=0.0)
    b_xs = tl.load(p_xs, mask=row & (start < stop), other=0.0)
    for i_group in range(start, stop):
        p_ws += 1
        p_xs += rows
        b_next_ws = tl.load(p_ws, mask=i_group + 1 < stop, other=0.0)
        b_next_xs = tl.load(p_xs, mask=row & (i_group + 1 < stop), other=0.0)
        # each group of 128 leaves the tensor core's narrow accumulator before it is added
        b_group = tl.dot(tl.load(p_w), tl.load(p_x, mask=row[None, :], other=0.0))
        if BN <= 128:
            b_y += b_group * (b_ws * b_xs)[None, :]
        else:
            b_y += b_group * (b_ws[:, None] * b_xs[None, :])
        p_w += 128
        p_x += 128
        b_ws, b_xs = b_next_ws, b_next_xs
    return b_y


@jit("rows", "groups_per_split")
def fp8_linear_kernel(
    p_x: Pointer,  # e4m3 [rows, depth]
    p_xs: Pointer,  # float32 [depth / 128, rows]
    p_w: Pointer,  # e4m3 [columns, depth]
    p_ws: Pointer,  # float32 [ceil(columns / 128), depth / 128]
    p_out: Pointer,  # float [splits, rows, columns]
    rows: int,
    columns: int,
    depth: int,
    groups_per_split: int,
    BN: constexpr,
    BM: constexpr,
    FETCH: constexpr,
    PDL: constexpr,
) -> None:
    i_m, i_n, i_split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    start = i_split * groups_per_split
    stop = tl.minimum(start + groups_per_split, depth // 128)
    if PDL:
        o_w = tl.minimum(i_n * BN + tl.arange(0, BN), columns - 1).to(tl.int64)
        fetch_weights_then_wait(p_w, o_w, start, depth, FETCH)
    b_y = block_product(p_x, p_xs, p_w, p_ws, i_n, i_m, rows, columns, depth, start, stop, BN, BM)
    if PDL:
        # at the end: waiting programs that start early would take the place of working ones
        tl.extra.cuda.gdc_launch_dependents()
    o_n = i_n * BN + tl.arange(0, BN)
    o_m = i_m * BM + tl.arange(0, BM)
    p_y = p_out + (i_split * rows + o_m[None, :]).to(tl.int64) * columns + o_n[:, None]
    tl.store(p_y, b_y.to(p_out.dtype.element_ty), mask=(o_n[:, None] < columns) & (o_m[None, :] < rows))


@jit("total")
def sum_parts_kernel(
    p_parts: Pointer,  # float32 [SPLIT, total]
    p_out: Pointer,  # float [total]
    total: int,
    SPLIT: constexpr,
    COLUMNS: constexpr,
    PDL: constexpr,
) -> None:
    o = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inside = o < total
    if PDL:
        start_next_then_wait()
    b_sum = tl.zeros((COLUMNS,), tl.float32)
    for i_split in tl.static_range(SPLIT):
        b_sum += tl.load(p_parts + i_split * total + o, mask=inside, other=0.0)
    tl.store(p_out + o, b_sum.to(p_out.dtype.element_ty), mask=inside)
