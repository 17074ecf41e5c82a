"""1x128 and 128x128 quantisation: the reference against e4m3's own table, the kernels against it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sparkle.kernels import quantise
from sparkle.kernels.quantise import AMAX_FLOOR, E4M3_MAX, Fp8Blocks, Fp8Rows
from tests.kernels.ahead_of_time import compile_for_h200
from tests.kernels.closeness import assert_same_bits, exact_blocks, exact_rows
from tests.kernels.fp8_inputs import random_matrix
from tests.kernels.interpreter import Interpreter

ROWS_SHAPES = [(1, 128), (3, 384), (5, 1152)]
BLOCKS_SHAPES = [(128, 128), (1, 256), (200, 384)]


def e4m3_values() -> Tensor:
    """Every finite value of the format."""
    values = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).double()
    return values[values.isfinite()]


def nearest_distance(x: Tensor) -> Tensor:
    """How far each value is from the nearest e4m3 value."""
    return (x.flatten()[:, None] - e4m3_values()[None]).abs().amin(dim=1).view(x.shape)


def assert_same_rows(got: Fp8Rows, want: Fp8Rows) -> None:
    assert_same_bits(got.scales, want.scales)
    assert_same_bits(got.values, want.values)
    assert got.scales.t().is_contiguous()


def assert_same_blocks(got: Fp8Blocks, want: Fp8Blocks) -> None:
    assert_same_bits(got.scales, want.scales)
    assert_same_bits(got.values, want.values)


def test_views_of_blocks_stand_for_the_same_values() -> None:
    w = quantise.quantise_blocks_reference(random_matrix(300, 256, seed=1))
    exact = exact_blocks(w)
    for view, first, end in (
        (w.rows(128, 300), 128, 300),
        (w.rows(128, 130), 128, 130),
        (w.rows(0, 256), 0, 256),
        (w.whole_blocks(1), 0, 128),
        (w.whole_blocks(256), 0, 256),
        (w.whole_blocks(257), 0, 300),
    ):
        assert torch.equal(exact_blocks(view), exact[first:end])
        assert view.values.data_ptr() == w.values[first:].data_ptr()


def test_a_row_is_rounded_to_the_nearest_value_of_its_group() -> None:
    x = random_matrix(5, 256, seed=1, dtype=torch.float32)
    got = quantise.quantise_rows(x)
    amax = x.double().reshape(5, 2, 128).abs().amax(dim=2).clamp_min(AMAX_FLOOR)
    torch.testing.assert_close(got.scales.double(), amax / E4M3_MAX, rtol=1e-7, atol=0.0)
    scaled = x.double() / (amax / E4M3_MAX).repeat_interleave(128, dim=1)
    # a value between two of the format may fall to either side by the float32 rounding of the quotient
    assert ((got.values.double() - scaled).abs() <= nearest_distance(scaled) + 1e-4).all()
    assert exact_rows(got)[2].abs().max() == 0.0
    assert got.values[0].float().abs().max() == E4M3_MAX


def test_a_block_has_one_scale_and_the_last_may_be_ragged() -> None:
    weight = random_matrix(130, 256, seed=2, dtype=torch.float32)
    got = quantise.quantise_blocks(weight)
    assert got.scales.shape == (2, 2)
    assert got.scales[1, 1] == weight[128:, 128:].abs().max() / E4M3_MAX
    errors = (exact_blocks(got) - weight.double()).abs()
    # half a step: 2^-4 of a normal value, 2^-10 of the scale below
    half_steps = torch.maximum(
        weight.double().abs() / 16, exact_blocks(Fp8Blocks(torch.ones_like(got.values), got.scales)) / 1024
    )
    assert (errors <= half_steps * (1 + 1e-6)).all()


def test_what_is_not_made_of_groups_is_refused() -> None:
    with pytest.raises(ValueError, match="x has 100 columns"):
        quantise.quantise_rows(torch.zeros(2, 100))
    with pytest.raises(ValueError, match="stride 2"):
        quantise.quantise_rows(torch.zeros(2, 256)[:, ::2])
    with pytest.raises(ValueError, match=r"torch\.float16"):
        quantise.quantise_blocks(torch.zeros(2, 128, dtype=torch.float16))


def test_rows_of_another_layout_are_refused() -> None:
    rows = quantise.quantise_rows(torch.zeros(3, 256))
    with pytest.raises(ValueError, match=r"must have \[256, 1\] and \[1, 3\]"):
        quantise.require_rows("x", Fp8Rows(rows.values, rows.scales.contiguous()))


@pytest.mark.parametrize(("rows", "columns"), ROWS_SHAPES, ids=str)
def test_rows_kernel(interpreter: Interpreter, rows: int, columns: int) -> None:
    x = random_matrix(rows, columns + 128, seed=rows)[:, 128:]  # rows are strided
    got = interpreter.call("sparkle.kernels.quantise:quantise_rows_triton", x, pdl=False)
    assert_same_rows(got, quantise.quantise_rows_reference(x))


@pytest.mark.parametrize(("rows", "columns"), BLOCKS_SHAPES, ids=str)
def test_blocks_kernel(interpreter: Interpreter, rows: int, columns: int) -> None:
    weight = random_matrix(rows, columns, seed=rows)
    got = interpreter.call("sparkle.kernels.quantise:quantise_blocks_triton", weight)
    assert_same_blocks(got, quantise.quantise_blocks_reference(weight))


def test_rows_kernel_compiles_without_spills() -> None:
    compiled = compile_for_h200(
        quantise.quantise_rows_kernel,
        {
            "p_x": "*bf16",
            "p_values": "*fp8e4nv",
            "p_scales": "*fp32",
            "rows": "i32",
            "stride_x": "i32",
            "columns": "i32",
        },
        {"GROUPS": quantise.GROUPS_PER_PROGRAM, "PDL": True},
        aligned=frozenset({"stride_x", "columns"}),
    )
    assert compiled.stack_bytes == 0
    assert "cvt.rn.satfinite.e4m3x2.f32" in compiled.ptx
    assert "ld.global.v4" in compiled.ptx
    assert compiled.ptx.index("griddepcontrol.wait") < compiled.ptx.index("ld.global")


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("rows", "columns"), [*ROWS_SHAPES, (0, 128), (129, 5120), (16, 17408), (4097, 6144)], ids=str
)
def test_rows_kernel_on_the_gpu(gpu: torch.device, rows: int, columns: int) -> None:
    x = random_matrix(rows, columns, seed=rows, device=gpu)
    got = quantise.quantise_rows(x)
    assert_same_rows(got, quantise.quantise_rows_reference(x))
    assert_same_rows(quantise.quantise_rows(x), got)


@pytest.mark.gpu
@pytest.mark.parametrize(("rows", "columns"), [*BLOCKS_SHAPES, (5120, 6144), (96, 5120)], ids=str)
def test_blocks_kernel_on_the_gpu(gpu: torch.device, rows: int, columns: int) -> None:
    weight = random_matrix(rows, columns, seed=rows, device=gpu)
    got = quantise.quantise_blocks(weight)
    assert_same_blocks(got, quantise.quantise_blocks_reference(weight))
