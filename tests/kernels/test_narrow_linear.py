"""The product with few outputs: the reference against float64, the kernel against both."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sparkle.kernels import narrow_linear
from sparkle.kernels.tolerance_relative import relative_error
from tests.kernels.ahead_of_time import SHARED_LIMIT_BYTES, compile_for_h200
from tests.kernels.closeness import assert_close, assert_same_bits
from tests.kernels.fp8_inputs import CPU, random_matrix
from tests.kernels.interpreter import Interpreter

SHAPES = [(1, 16, 128), (17, 12, 320), (33, 96, 528), (3, 5, 131)]  # rows, columns, depth


def factors(rows: int, columns: int, depth: int, device: torch.device = CPU) -> tuple[Tensor, Tensor]:
    return random_matrix(rows, depth, seed=1, device=device), random_matrix(
        columns, depth, seed=2, device=device
    )


def assert_product(got: Tensor, x: Tensor, w: Tensor) -> None:
    assert got.dtype == torch.float32
    exact = x.double() @ w.double().t()
    assert_close("narrow_linear", got, narrow_linear.narrow_linear_reference(x, w), exact)


@pytest.mark.parametrize("shape", [*SHAPES, (0, 16, 128)], ids=str)
def test_product(shape: tuple[int, int, int]) -> None:
    x, w = factors(*shape)
    got = narrow_linear.narrow_linear(x, w)
    # sums in float32: rounded to bfloat16 they would be off by a thousand times as much
    exact = x.double() @ w.double().t()
    assert relative_error(got, exact) < 1e-6


def test_wrong_inputs_are_refused() -> None:
    x, w = factors(3, 16, 128)
    with pytest.raises(ValueError, match=r"x is torch\.float32"):
        narrow_linear.narrow_linear(x.float(), w)
    with pytest.raises(ValueError, match=r"w has shape \[16, 112\] but must be \[any, 128\]"):
        narrow_linear.narrow_linear(x, w[:, 16:])
    with pytest.raises(ValueError, match="x has strides"):
        narrow_linear.narrow_linear(random_matrix(3, 256, seed=1)[:, :128], w)
    with pytest.raises(ValueError, match="w has 257 rows"):
        narrow_linear.narrow_linear(x, torch.zeros(257, 128, dtype=torch.bfloat16))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_kernel(interpreter: Interpreter, shape: tuple[int, int, int]) -> None:
    x, w = factors(*shape)
    assert_product(interpreter.call("sparkle.kernels.narrow_linear:narrow_linear_triton", x, w), x, w)


def test_kernel_compiles_to_tensor_core_code() -> None:
    compiled = compile_for_h200(
        narrow_linear.narrow_linear_kernel,
        {"p_x": "*bf16", "p_w": "*bf16", "p_out": "*fp32", "rows": "i32", "columns": "i32", "depth": "i32"},
        {"TILE": narrow_linear.TILE, "PARTS": narrow_linear.WARPS, "PART": narrow_linear.WARP_DEPTH},
        aligned=frozenset({"columns", "depth"}),
        warps=narrow_linear.WARPS,
        stages=narrow_linear.STAGES,
        pdl=False,
    )
    assert "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32" in compiled.ptx
    assert "cp.async.cg.shared.global" in compiled.ptx
    assert compiled.stack_bytes == 0
    assert compiled.shared_bytes <= SHARED_LIMIT_BYTES


@pytest.mark.gpu
@pytest.mark.parametrize(
    "shape",
    [*SHAPES, (0, 96, 5120), (1, 96, 5120), (64, 96, 5120), (65, 96, 5120), (1000, 256, 5120)],
    ids=str,
)
def test_product_on_the_gpu(gpu: torch.device, shape: tuple[int, int, int]) -> None:
    x, w = factors(*shape, device=gpu)
    got = narrow_linear.narrow_linear(x, w)
    assert_product(got, x, w)
    assert_same_bits(narrow_linear.narrow_linear(x, w), got)


@pytest.mark.gpu
def test_a_row_does_not_depend_on_the_rows_beside_it(gpu: torch.device) -> None:
    x, w = factors(64, 96, 5120, device=gpu)
    whole = narrow_linear.narrow_linear(x, w)
    for row in (0, 17, 63):
        assert_same_bits(narrow_linear.narrow_linear(x[row : row + 1], w), whole[row : row + 1])
