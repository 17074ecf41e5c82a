"""SiLU(gate) · up with quantisation: the reference against float64, the kernel against both."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sparkle.kernels import silu_mul_quant
from sparkle.kernels.quantise import GROUPS_PER_PROGRAM, Fp8Rows
from sparkle.kernels.tolerance_relative import relative_error
from tests.kernels.ahead_of_time import compile_for_h200
from tests.kernels.closeness import assert_close, assert_same_bits, exact_rows
from tests.kernels.fp8_inputs import random_matrix
from tests.kernels.interpreter import Interpreter

SHAPES = [(1, 128), (3, 384), (5, 1152)]


def truth(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.double().chunk(2, dim=1)
    return gate / (1.0 + (-gate).exp()) * up


def assert_silu_mul(got: Fp8Rows, gate_up: Tensor) -> None:
    reference = silu_mul_quant.silu_mul_quantise_reference(gate_up)
    assert_close("norm_quantise", exact_rows(got), exact_rows(reference), truth(gate_up))


def test_the_first_half_is_the_gate() -> None:
    gate_up = random_matrix(2, 512, seed=1)
    got = silu_mul_quant.silu_mul_quantise(gate_up)
    assert got.values.shape == (2, 256)
    # the rounding of e4m3 alone: an exchange of the halves would be an error of about 1
    assert 0.01 < relative_error(exact_rows(got), truth(gate_up)) < 0.04


def test_wrong_inputs_are_refused() -> None:
    with pytest.raises(ValueError, match="multiple of 256 columns"):
        silu_mul_quant.silu_mul_quantise(torch.zeros(2, 384))
    with pytest.raises(ValueError, match="must be dense"):
        silu_mul_quant.silu_mul_quantise(torch.zeros(2, 1024)[:, :512])


@pytest.mark.parametrize(("rows", "columns"), SHAPES, ids=str)
def test_kernel(interpreter: Interpreter, rows: int, columns: int) -> None:
    gate_up = random_matrix(rows, 2 * columns, seed=rows)
    got = interpreter.call("sparkle.kernels.silu_mul_quant:silu_mul_quantise_triton", gate_up, pdl=False)
    assert_silu_mul(got, gate_up)


def test_kernel_compiles_without_spills() -> None:
    compiled = compile_for_h200(
        silu_mul_quant.silu_mul_quantise_kernel,
        {"p_gate_up": "*bf16", "p_values": "*fp8e4nv", "p_scales": "*fp32", "rows": "i32", "columns": "i32"},
        {"GROUPS": GROUPS_PER_PROGRAM, "PDL": True},
        aligned=frozenset({"columns"}),
        warps=silu_mul_quant.WARPS,
    )
    assert compiled.stack_bytes == 0
    assert "ld.global.v4" in compiled.ptx


@pytest.mark.gpu
@pytest.mark.parametrize(("rows", "columns"), [*SHAPES, (0, 128), (16, 17408), (4097, 17408)], ids=str)
def test_kernel_on_the_gpu(gpu: torch.device, rows: int, columns: int) -> None:
    gate_up = random_matrix(rows, 2 * columns, seed=rows, device=gpu)
    got = silu_mul_quant.silu_mul_quantise(gate_up)
    assert_silu_mul(got, gate_up)
    assert_same_bits(silu_mul_quant.silu_mul_quantise(gate_up).values, got.values)
