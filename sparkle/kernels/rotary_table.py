"""Cosines and sines of interleaved multi-axis rotary positions, once a pass. Knows no heads."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from sparkle.kernels.checks import require_dtype, require_shape
from sparkle.kernels.jit import Pointer, constexpr, jit, tl

ROWS_PER_PROGRAM = 16


def rotary_table(positions: Tensor, *, theta: float, rotary_dim: int, sections: Sequence[int]) -> Tensor:
    """Lane i turns by position · theta^(-2i/rotary_dim); the position is the height where i % 3 == 1 and
    i < 3·sections[1], the width where i % 3 == 2 and i < 3·sections[2], else the time.

    positions int64 [3, T] (time, height, width), rows of any stride; returns float32 [2, T, rotary_dim/2]:
    cosines, sines. The angle is computed in float64: in float32 it would be off by 0.01 after 200,000 tokens.
    ValueError for any other shape or dtype.
    """
    require_dtype("positions", positions, torch.int64)
    require_shape("positions", positions, 3, None)
    if rotary_dim % 2 or len(sections) != 3:
        raise ValueError(f"rotary_dim {rotary_dim} must be even and sections {list(sections)} must be three")
    run = rotary_table_triton if positions.is_cuda else rotary_table_reference
    return run(positions, theta=theta, rotary_dim=rotary_dim, sections=sections)


def rotary_table_reference(
    positions: Tensor, *, theta: float, rotary_dim: int, sections: Sequence[int]
) -> Tensor:
    """See rotary_table."""
    exponents = torch.arange(0, rotary_dim, 2, dtype=torch.float64, device=positions.device) / rotary_dim
    angles = positions.double()[:, :, None] / theta**exponents  # [3, T, lanes]
    mixed = angles[0].clone()
    for axis in (1, 2):
        lanes = slice(axis, 3 * sections[axis], 3)
        mixed[:, lanes] = angles[axis, :, lanes]
    return torch.stack((mixed.cos(), mixed.sin())).float()


def rotary_table_triton(
    positions: Tensor, *, theta: float, rotary_dim: int, sections: Sequence[int]
) -> Tensor:
    """Launches the kernel of rotary_table."""
    rows, lanes = positions.shape[1], rotary_dim // 2
    out = torch.empty(2, rows, lanes, dtype=torch.float32, device=positions.device)
    if rows and lanes:
        rotary_table_kernel[(-(-rows // ROWS_PER_PROGRAM),)](
            positions,
            out,
            rows,
            positions.stride(0),
            positions.stride(1),
            LOG2_THETA=math.log2(theta),
            LANES=lanes,
            HEIGHT_LANES=3 * sections[1],
            WIDTH_LANES=3 * sections[2],
            ROWS=ROWS_PER_PROGRAM,
            BLOCK=1 << (lanes - 1).bit_length(),
            num_warps=4,
        )
    return out


@jit("rows", "stride_axis")
def rotary_table_kernel(
    p_positions: Pointer,  # int64 [3, rows], of strides stride_axis, stride_row
    p_out: Pointer,  # float32 [2, rows, LANES]
    rows: int,
    stride_axis: int,
    stride_row: int,
    LOG2_THETA: constexpr,
    LANES: constexpr,
    HEIGHT_LANES: constexpr,
    WIDTH_LANES: constexpr,
    ROWS: constexpr,
    BLOCK: constexpr,  # LANES, up to a power of two
) -> None:
    o_row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    o_lane = tl.arange(0, BLOCK)[None, :]
    real = (o_row < rows) & (o_lane < LANES)
    b_axis = tl.where((o_lane % 3 == 1) & (o_lane < HEIGHT_LANES), 1, 0)
    b_axis = tl.where((o_lane % 3 == 2) & (o_lane < WIDTH_LANES), 2, b_axis)
    b_position = tl.load(p_positions + b_axis * stride_axis + o_row * stride_row, mask=real, other=0)
    # a turn is 2 pi; beside float64 a plain number is float64 too
    b_frequency = tl.exp2(o_lane.to(tl.float64) * (-LOG2_THETA / LANES)) * 0.15915494309189535
    b_turns = b_position.to(tl.float64) * b_frequency
    # full turns are taken off in float64; for the rest, at most half a turn, float32 is enough
    b_angle = ((b_turns - tl.floor(b_turns + 0.5)) * 6.283185307179586).to(tl.float32)
    p_o = p_out + o_row * LANES + o_lane
    tl.store(p_o, tl.cos(b_angle), mask=real)
    tl.store(p_o + rows * LANES, tl.sin(b_angle), mask=real)
