"""Rotary positions against complex rotation, lane by lane, in float64."""

from __future__ import annotations

import math
import struct

import pytest
import torch
from torch import Tensor

from sparkle.kernels import ops, rotary_table
from sparkle.kernels.tolerance import mismatch
from tests.kernels.ahead_of_time import compile_for_h200
from tests.kernels.interpreter import Interpreter
from tests.kernels.spans import FLOATS

PUBLISHED = (11, 11, 10)


def axis_of(lane: int, sections: tuple[int, int, int]) -> int:
    """0 time, 1 height, 2 width."""
    if lane % 3 == 1 and lane < 3 * sections[1]:
        return 1
    if lane % 3 == 2 and lane < 3 * sections[2]:
        return 2
    return 0


def test_the_published_lanes() -> None:
    """32 lanes: 11 of time, 11 of height, 10 of width, in turns."""
    axes = [axis_of(lane, PUBLISHED) for lane in range(32)]
    assert [axes.count(axis) for axis in range(3)] == list(PUBLISHED)
    # each axis has its own position: an angle says which one a lane took
    table = ops.rotary_table(torch.tensor([[1], [2], [3]]), theta=1.0, rotary_dim=64, sections=PUBLISHED)
    angles = torch.atan2(table[1, 0], table[0, 0])
    assert [round(float(angle)) - 1 for angle in angles] == axes


TABLES = [(64, 1e7, PUBLISHED), (2, 1e4, PUBLISHED), (10, 1e4, (2, 2, 1)), (16, 1e6, (8, 0, 0))]


def random_positions(rows: int) -> Tensor:
    """Up to the longest context, the last one among them; rows of a wider tensor."""
    wide = torch.randint(0, 262_144, (3, rows + 5))
    wide[:, 0] = 262_143
    return wide[:, :rows]


def exact_table(positions: Tensor, theta: float, rotary_dim: int, sections: tuple[int, int, int]) -> Tensor:
    rows = positions.shape[1]
    exact = torch.empty(2, rows, rotary_dim // 2, dtype=torch.float64)
    for row in range(rows):
        for lane in range(rotary_dim // 2):
            position = int(positions[axis_of(lane, sections), row])
            angle = position * theta ** (-2 * lane / rotary_dim)
            exact[:, row, lane] = torch.tensor([math.cos(angle), math.sin(angle)])
    return exact


@pytest.mark.parametrize(("rotary_dim", "theta", "sections"), TABLES)
def test_table(rotary_dim: int, theta: float, sections: tuple[int, int, int]) -> None:
    positions = random_positions(9)
    got = ops.rotary_table(positions, theta=theta, rotary_dim=rotary_dim, sections=sections)
    assert mismatch("rotary_table", got, exact_table(positions, theta, rotary_dim, sections)) is None


@pytest.mark.parametrize(("rotary_dim", "theta", "sections"), TABLES)
def test_table_kernel(
    interpreter: Interpreter, rotary_dim: int, theta: float, sections: tuple[int, int, int]
) -> None:
    positions = random_positions(19)
    got = interpreter.call(
        "sparkle.kernels.rotary_table:rotary_table_triton",
        positions,
        theta=theta,
        rotary_dim=rotary_dim,
        sections=sections,
    )
    assert mismatch("rotary_table", got, exact_table(positions, theta, rotary_dim, sections)) is None


def test_table_kernel_computes_angles_in_float64() -> None:
    compiled = compile_for_h200(
        rotary_table.rotary_table_kernel,
        {"p_positions": "*i64", "p_out": "*fp32", "rows": "i32", "stride_axis": "i32", "stride_row": "i32"},
        {
            "LOG2_THETA": math.log2(1e7),
            "LANES": 32,
            "HEIGHT_LANES": 33,
            "WIDTH_LANES": 30,
            "ROWS": rotary_table.ROWS_PER_PROGRAM,
            "BLOCK": 32,
        },
        pdl=False,
    )
    # the frequencies' constant, not rounded to float32
    assert f"0d{struct.pack('>d', -math.log2(1e7) / 32).hex().upper()}" in compiled.ptx
    # the library's way with large angles, which no rest of a turn takes
    assert compiled.stack_bytes <= 32


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [0, 1, 16, 1000])
@pytest.mark.parametrize(("rotary_dim", "theta", "sections"), TABLES)
def test_table_on_the_gpu(
    gpu: torch.device, rotary_dim: int, theta: float, sections: tuple[int, int, int], rows: int
) -> None:
    positions = random_positions(rows)
    got = ops.rotary_table(positions.to(gpu), theta=theta, rotary_dim=rotary_dim, sections=sections)
    exact = exact_table(positions, theta, rotary_dim, sections)
    assert mismatch("rotary_table", got.cpu(), exact) is None


def test_table_of_no_rows() -> None:
    table = ops.rotary_table(
        torch.zeros(3, 0, dtype=torch.int64), theta=1e4, rotary_dim=8, sections=(2, 1, 1)
    )
    assert table.shape == (2, 0, 4)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("heads", "head_dim", "lanes"), [(1, 2, 1), (3, 10, 3), (2, 256, 32), (5, 6, 3)])
def test_rotary(heads: int, head_dim: int, lanes: int, dtype: torch.dtype) -> None:
    """A pair (x[i], x[i + lanes]) is a complex number turned by the lane's angle; the rest stays."""
    x = torch.randn(4, heads, head_dim).to(dtype)
    angles = 6 * torch.rand(4, lanes, dtype=torch.float64)
    table = torch.stack((angles.cos(), angles.sin())).float()
    exact = x.double()
    for row in range(4):
        for head in range(heads):
            for lane in range(lanes):
                pair = complex(x[row, head, lane].item(), x[row, head, lane + lanes].item())
                turned = pair * complex(table[0, row, lane].item(), table[1, row, lane].item())
                exact[row, head, lane], exact[row, head, lane + lanes] = turned.real, turned.imag
    got = ops.rotary(x, table)
    assert mismatch("rotary", got, exact) is None
    assert torch.equal(got[..., 2 * lanes :], x[..., 2 * lanes :])
