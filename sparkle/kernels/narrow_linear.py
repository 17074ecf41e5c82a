"""y = x · wᵀ in bfloat16 for the few outputs that stay unquantised, a layer's gates. Knows no layers.

With few rows it is made to run beside a large product: a program holds 16 columns and 16 rows, so that the
gates of a layer take 6 of the chip's multiprocessors. All of a program's warps work on the same tile, each on
a part of K, and their sums are added in a fixed order.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sparkle.kernels.checks import require_dense, require_dtype, require_one_device, require_shape
from sparkle.kernels.jit import Pointer, constexpr, jit, tl

MAX_COLUMNS = 256
FEW_ROWS = 64
TILE = 16
WARPS, WARP_DEPTH, STAGES = 4, 64, 4


def narrow_linear(x: Tensor, w: Tensor) -> Tensor:
    """y = x · wᵀ with float32 sums. x bfloat16 [M, K], w bfloat16 [N, K], both dense, N at most 256.

    Returns float32 [M, N]. ValueError for any other shape, dtype or stride.
    """
    for name, factor in (("x", x), ("w", w)):
        require_dtype(name, factor, torch.bfloat16)
        require_shape(name, factor, None, x.shape[-1])
        require_dense(name, factor)
    columns = w.shape[0]
    if columns > MAX_COLUMNS:
        raise ValueError(f"w has {columns} rows but must have at most {MAX_COLUMNS}")
    require_one_device(x=x, w=w)
    if not x.is_cuda:
        return narrow_linear_reference(x, w)
    if x.shape[0] <= FEW_ROWS:
        return narrow_linear_triton(x, w)
    return torch.mm(x, w.t(), out_dtype=torch.float32)


def narrow_linear_reference(x: Tensor, w: Tensor) -> Tensor:
    """See narrow_linear."""
    return x.float() @ w.float().t()


def narrow_linear_triton(x: Tensor, w: Tensor) -> Tensor:
    """Launches the kernel of narrow_linear."""
    rows, (columns, depth) = x.shape[0], w.shape
    out = torch.empty(rows, columns, dtype=torch.float32, device=x.device)
    if rows and columns:
        narrow_linear_kernel[-(-columns // TILE), -(-rows // TILE)](
            x,
            w,
            out,
            rows,
            columns,
            depth,
            TILE=TILE,
            PARTS=WARPS,
            PART=WARP_DEPTH,
            num_warps=WARPS,
            num_stages=STAGES,
        )
    return out


@jit("rows")
def narrow_linear_kernel(
    p_x: Pointer,  # bfloat16 [rows, depth]
    p_w: Pointer,  # bfloat16 [columns, depth]
    p_out: Pointer,  # float32 [rows, columns]
    rows: int,
    columns: int,
    depth: int,
    TILE: constexpr,
    PARTS: constexpr,
    PART: constexpr,
) -> None:
    o_row = tl.program_id(1) * TILE + tl.arange(0, TILE)
    o_column = tl.program_id(0) * TILE + tl.arange(0, TILE)
    o_part = tl.arange(0, PARTS)[:, None, None] * PART
    o_k = tl.arange(0, PART)
    o_x = o_part + o_k[None, None, :]  # [PARTS, 1, PART]
    o_w = o_part + o_k[None, :, None]  # [PARTS, PART, 1]
    p_x += o_row[None, :, None] * depth
    p_w += o_column[None, None, :] * depth
    real, output = o_row[None, :, None] < rows, o_column[None, None, :] < columns
    b_sum = tl.zeros((PARTS, TILE, TILE), tl.float32)
    for start in range(0, depth, PARTS * PART):
        b_x = tl.load(p_x + start + o_x, mask=real & (start + o_x < depth), other=0.0)
        b_w = tl.load(p_w + start + o_w, mask=output & (start + o_w < depth), other=0.0)
        b_sum = tl.dot(b_x, b_w, b_sum)
    p_o = p_out + o_row[:, None] * columns + o_column[None, :]
    tl.store(p_o, tl.sum(b_sum, axis=0), mask=(o_row[:, None] < rows) & (o_column[None, :] < columns))
