"""x · sigmoid(gate) with quantisation: the reference against float64, the kernel against both."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sparkle.kernels import sigmoid_mul_quant
from sparkle.kernels.quantise import GROUPS_PER_PROGRAM, Fp8Rows
from sparkle.kernels.tolerance_relative import relative_error
from tests.kernels.ahead_of_time import compile_for_h200
from tests.kernels.closeness import assert_close, assert_same_bits, exact_rows
from tests.kernels.fp8_inputs import CPU, random_matrix
from tests.kernels.interpreter import Interpreter

SHAPES = [(1, 2, 64), (3, 1, 128), (5, 5, 256)]  # rows, heads, width


def inputs(rows: int, heads: int, dim: int, device: torch.device = CPU) -> tuple[Tensor, Tensor]:
    """x, and a gate that stands in a wider product: each head's behind its query, as checkpoints have it."""
    x = random_matrix(rows, heads * dim, seed=1, device=device).reshape(rows, heads, dim)
    wide = random_matrix(rows, 2 * heads * dim + 128, seed=2, device=device)
    return x, wide[:, 128:].view(rows, heads, 2, dim)[:, :, 1]


def truth(x: Tensor, gate: Tensor) -> Tensor:
    return (x.double() / (1.0 + (-gate.double()).exp())).flatten(1)


def assert_gated(got: Fp8Rows, x: Tensor, gate: Tensor) -> None:
    reference = sigmoid_mul_quant.sigmoid_mul_quantise_reference(x, gate)
    assert_close("norm_quantise", exact_rows(got), exact_rows(reference), truth(x, gate))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_gate_takes_its_sigmoid(shape: tuple[int, int, int]) -> None:
    x, gate = inputs(*shape)
    got = sigmoid_mul_quant.sigmoid_mul_quantise(x, gate)
    assert got.values.shape == (shape[0], shape[1] * shape[2])
    # the rounding of e4m3 alone: a SiLU in the sigmoid's place would be an error of about 1
    assert 0.01 < relative_error(exact_rows(got), truth(x, gate)) < 0.04


def test_wrong_inputs_are_refused() -> None:
    x, gate = inputs(3, 2, 128)
    with pytest.raises(ValueError, match="x has 3 heads of 64 but together"):
        sigmoid_mul_quant.sigmoid_mul_quantise(torch.zeros(2, 3, 64), torch.zeros(2, 3, 64))
    with pytest.raises(ValueError, match=r"gate has shape \[3, 1, 128\]"):
        sigmoid_mul_quant.sigmoid_mul_quantise(x, gate[:, :1])
    with pytest.raises(ValueError, match="a head must be dense"):
        sigmoid_mul_quant.sigmoid_mul_quantise(x, torch.zeros(3, 2, 256)[:, :, ::2])
    with pytest.raises(ValueError, match="x has strides"):
        sigmoid_mul_quant.sigmoid_mul_quantise(gate, x)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_kernel(interpreter: Interpreter, shape: tuple[int, int, int]) -> None:
    x, gate = inputs(*shape)
    module = "sparkle.kernels.sigmoid_mul_quant"
    assert_gated(interpreter.call(f"{module}:sigmoid_mul_quantise_triton", x, gate, pdl=False), x, gate)


def test_kernel_compiles_without_spills() -> None:
    compiled = compile_for_h200(
        sigmoid_mul_quant.sigmoid_mul_quantise_kernel,
        {
            **dict.fromkeys(("p_x", "p_gate"), "*bf16"),
            "p_values": "*fp8e4nv",
            "p_scales": "*fp32",
            **dict.fromkeys(("rows", "columns", "stride_gate", "stride_gate_head"), "i32"),
        },
        {"DIM": 256, "GROUPS": GROUPS_PER_PROGRAM, "PDL": True},
        aligned=frozenset({"columns", "stride_gate", "stride_gate_head"}),
        warps=sigmoid_mul_quant.WARPS,
    )
    assert compiled.stack_bytes == 0
    assert compiled.ptx.count("ld.global.v4") == compiled.ptx.count("ld.global") > 0


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [*SHAPES, (0, 24, 256), (16, 24, 256), (4097, 24, 256)], ids=str)
def test_kernel_on_the_gpu(gpu: torch.device, shape: tuple[int, int, int]) -> None:
    x, gate = inputs(*shape, device=gpu)
    got = sigmoid_mul_quant.sigmoid_mul_quantise(x, gate)
    assert_gated(got, x, gate)
    assert_same_bits(sigmoid_mul_quant.sigmoid_mul_quantise(x, gate).values, got.values)
