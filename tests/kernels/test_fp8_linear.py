"""The FP8 product: the reference against float64, the kernel against both, and what it compiles to."""

from __future__ import annotations

import re

import pytest
import torch

from sparkle.kernels import fp8_linear
from sparkle.kernels.quantise import Fp8Blocks, Fp8Rows
from sparkle.kernels.tolerance_relative import relative_error
from sparkle.kernels.tuning import (
    MAX_BLOCK_ROWS,
    LinearSettings,
    block_rows,
    linear_settings,
    measured_shapes,
)
from tests.kernels.ahead_of_time import SHARED_LIMIT_BYTES, compile_for_h200
from tests.kernels.closeness import assert_close, assert_same_bits, exact_blocks, exact_rows
from tests.kernels.fp8_inputs import random_blocks, random_rows
from tests.kernels.interpreter import Interpreter
from tests.kernels.proxy_order import unordered_products

MODULE = "sparkle.kernels.fp8_linear"
TYPES = {
    "p_x": "*fp8e4nv",
    "p_xs": "*fp32",
    "p_w": "*fp8e4nv",
    "p_ws": "*fp32",
    "p_out": "*fp32",
    "rows": "i32",
    "columns": "i32",
    "depth": "i32",
    "groups_per_split": "i32",
}


def settings(block_columns: int, split: int) -> LinearSettings:
    return LinearSettings(block_columns=block_columns, split=split, stages=2, warps=4, fetch=0)


def assert_product(got: torch.Tensor, x: Fp8Rows, w: Fp8Blocks) -> None:
    reference = fp8_linear.fp8_linear_reference(x, w, dtype=got.dtype)
    assert_close("fp8_linear", got, reference, exact_rows(x) @ exact_blocks(w).t())


def test_reference_is_the_formula() -> None:
    x, w = random_rows(5, 384, seed=1), random_blocks(200, 384, seed=2)
    truth = exact_rows(x) @ exact_blocks(w).t()
    assert relative_error(fp8_linear.fp8_linear(x, w, dtype=torch.float32), truth) < 1e-6
    assert relative_error(fp8_linear.fp8_linear(x, w), truth) < 2.0**-8
    assert fp8_linear.fp8_linear_parts(x, w).shape == (1, 5, 200)


def test_wrong_inputs_are_refused() -> None:
    x, w = random_rows(5, 384, seed=1), random_blocks(200, 256, seed=2)
    with pytest.raises(ValueError, match="x has 384 columns but w has 256"):
        fp8_linear.fp8_linear(x, w)
    with pytest.raises(ValueError, match=r"dtype is torch\.float16"):
        fp8_linear.fp8_linear(x, random_blocks(200, 384, seed=2), dtype=torch.float16)
    with pytest.raises(ValueError, match=r"w\.scales has shape \[1, 2\]"):
        fp8_linear.fp8_linear(x, Fp8Blocks(w.values, w.scales[:1]))


@pytest.mark.parametrize(
    ("rows", "columns", "depth", "block_columns", "split"),
    [
        (1, 64, 128, 64, 1),
        (5, 200, 384, 64, 2),  # ragged columns, groups that do not divide by the split
        (17, 130, 256, 128, 1),  # two row blocks' worth of the least width
        (3, 64, 128, 64, 2),  # a program without a group
    ],
    ids=str,
)
def test_kernel(
    interpreter: Interpreter, rows: int, columns: int, depth: int, block_columns: int, split: int
) -> None:
    x, w = random_rows(rows, depth, seed=1), random_blocks(columns, depth, seed=2)
    parts = interpreter.call(
        f"{MODULE}:fp8_linear_triton",
        x,
        w,
        dtype=torch.float32,
        settings=settings(block_columns, split),
        pdl=False,
    )
    assert parts.shape == (split, rows, columns)
    assert_product(parts.sum(dim=0), x, w)


def test_parts_are_added_in_order(interpreter: Interpreter) -> None:
    # in float32 the order decides what is left of the one
    parts = torch.tensor([1e8, -1e8, 1.0])[:, None, None].expand(3, 3, 700).contiguous()
    got = interpreter.call(f"{MODULE}:sum_parts_triton", parts, dtype=torch.bfloat16, pdl=False)
    assert_same_bits(got, torch.ones(3, 700, dtype=torch.bfloat16))


@pytest.mark.parametrize("rows", [1, 16, 17, 33, 64])
@pytest.mark.parametrize("shape", [(248320, 5120), (5120, 2048)], ids=str)
def test_the_settings_compile_to_tensor_core_code(shape: tuple[int, int], rows: int) -> None:
    chosen, width = linear_settings(*shape, rows=rows), block_rows(rows)
    compiled = compile_for_h200(
        fp8_linear.fp8_linear_kernel,
        TYPES,
        {"BN": chosen.block_columns, "BM": width, "FETCH": chosen.fetch, "PDL": True},
        aligned=frozenset({"columns", "depth"}),
        warps=chosen.warps,
        stages=chosen.stages,
    )
    instructions = set(re.findall(r"wgmma\.mma_async\S*\.(m64n\d+k32)\.f32\.e4m3\.e4m3", compiled.ptx))
    assert instructions == {f"m64n{width}k32"}
    assert "mma.sync" not in compiled.ptx
    assert unordered_products(compiled.ptx) == 0
    assert compiled.stack_bytes == 0
    assert compiled.shared_bytes <= SHARED_LIMIT_BYTES
    # the pipeline's first loads depend on the kernel in front: none may move before the wait
    wait = compiled.ptx.index("griddepcontrol.wait")
    assert wait < compiled.ptx.index("cp.async")
    # the weights do not: the cache may be asked for them meanwhile
    assert compiled.ptx.count("prefetch.global.L2", 0, wait) == compiled.ptx.count("prefetch.global.L2")
    assert (chosen.fetch > 0) == ("prefetch.global.L2" in compiled.ptx)


def test_the_split_does_not_depend_on_the_rows() -> None:
    for shape in [(248320, 5120), (256, 512), (5120, 2048)]:
        splits = {linear_settings(*shape, rows=rows).split for rows in range(1, MAX_BLOCK_ROWS + 1)}
        assert len(splits) == 1, shape


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [0, 1, 5, 16, 31, 64, 100, 128, 129, 515])
@pytest.mark.parametrize("shape", [(5120, 6144), (16384, 5120), (208, 384)], ids=str)
def test_product_on_the_gpu(gpu: torch.device, shape: tuple[int, int], rows: int) -> None:
    x, w = random_rows(rows, shape[1], seed=1, device=gpu), random_blocks(*shape, seed=2, device=gpu)
    for dtype in (torch.bfloat16, torch.float32):
        got = fp8_linear.fp8_linear(x, w, dtype=dtype)
        assert got.dtype == dtype
        assert_product(got, x, w)
        assert_same_bits(fp8_linear.fp8_linear(x, w, dtype=dtype), got)


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [*measured_shapes()[:5], (208, 384)], ids=str)
def test_a_row_does_not_depend_on_the_rows_beside_it(gpu: torch.device, shape: tuple[int, int]) -> None:
    w = random_blocks(*shape, seed=2, device=gpu)
    every = random_rows(MAX_BLOCK_ROWS, shape[1], seed=1, device=gpu)
    whole = fp8_linear.fp8_linear(every, w, dtype=torch.float32)
    for rows in (1, 2, 15, 16, 17, 31, 32, 33, 63):
        few = Fp8Rows(every.values[:rows], every.scales[:rows].t().contiguous().t())
        assert_same_bits(fp8_linear.fp8_linear(few, w, dtype=torch.float32), whole[:rows])
