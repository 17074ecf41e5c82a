"""RMSNorm fused with addition and quantisation: the reference against float64, the kernels against both."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sparkle.kernels import norm_quant, reference
from sparkle.kernels.quantise import Fp8Rows
from sparkle.kernels.tolerance_relative import relative_error
from tests.kernels.ahead_of_time import compile_for_h200
from tests.kernels.closeness import assert_close, assert_same_bits, exact_rows
from tests.kernels.fp8_inputs import CPU, random_matrix
from tests.kernels.interpreter import Interpreter

EPS = 1e-6
MODULE = "sparkle.kernels.norm_quant"
# rows, columns, parts of the addend and their dtype; 0 parts: the first layer has no addend
NORMS = [
    (1, 128, 0, torch.bfloat16),
    (3, 384, 1, torch.bfloat16),
    (5, 640, 3, torch.float32),
    # many rows take tiles of 8 groups, here one and a half
    (norm_quant.FEW_ROWS + 1, 1536, 1, torch.bfloat16),
]
GATED = [(1, 1), (3, 5), (2, 9), (norm_quant.FEW_ROWS + 1, 1)]  # rows, heads


def norm_inputs(
    rows: int, columns: int, parts: int, dtype: torch.dtype, device: torch.device = CPU
) -> tuple[Tensor, Tensor | None, Tensor]:
    residual = random_matrix(rows, columns, seed=1, device=device)
    weight = random_matrix(1, columns, seed=20, device=device)[0]
    if parts == 0:
        return residual, None, weight
    seeds = range(2, 2 + parts)
    addend = [random_matrix(rows, columns, seed=seed, dtype=dtype, device=device) for seed in seeds]
    return residual, torch.stack(addend), weight


def strided_heads(wide: Tensor, heads: int) -> Tensor:
    """The last heads of a product's rows, [M, heads, 128] without a copy."""
    rows, columns = wide.shape
    return wide.as_strided((rows, heads, 128), (columns, 128, 1), columns - heads * 128)


def gated_inputs(rows: int, heads: int, device: torch.device = CPU) -> tuple[Tensor, Tensor, Tensor]:
    x = random_matrix(rows, heads * 128, seed=1, device=device).reshape(rows, heads, 128)
    # the gate is part of a wider product: its rows are strided
    gate = strided_heads(random_matrix(rows, heads * 128 + 256, seed=2, device=device), heads)
    return x, gate, random_matrix(1, 128, seed=3, dtype=torch.float32, device=device)[0]


def norm_truth(total: Tensor, weight: Tensor) -> Tensor:
    h = total.double()
    return h / (h.square().mean(dim=1, keepdim=True) + EPS).sqrt() * (1.0 + weight.double())


def gated_truth(x: Tensor, gate: Tensor, weight: Tensor) -> Tensor:
    wide, z = x.double(), gate.double()
    normalised = wide / (wide.square().mean(dim=2, keepdim=True) + EPS).sqrt()
    return (normalised * weight.double() * z / (1.0 + (-z).exp())).flatten(1)


def assert_norm(got: tuple[Tensor, Fp8Rows], residual: Tensor, addend: Tensor | None, weight: Tensor) -> None:
    total, quantised = got
    known_total, known = norm_quant.add_rms_norm_quantise_reference(residual, addend, weight, eps=EPS)
    assert_same_bits(total, known_total)
    assert_close("norm_quantise", exact_rows(quantised), exact_rows(known), norm_truth(total, weight))


def assert_both(
    total: Tensor,
    normed: Tensor,
    quantised: Fp8Rows,
    residual: Tensor,
    addend: Tensor | None,
    weight: Tensor,
) -> None:
    assert_norm((total, quantised), residual, addend, weight)
    assert_close("norm_round", normed, reference.rms_norm(total, weight, eps=EPS), norm_truth(total, weight))


def test_the_addend_is_rounded_once_and_the_norm_is_of_the_sum() -> None:
    residual, addend, weight = norm_inputs(5, 640, 3, torch.float32)
    assert addend is not None
    total, quantised = norm_quant.add_rms_norm_quantise(residual, addend, weight, eps=EPS)
    exact = residual.double() + addend.double().sum(dim=0)
    # half a unit of bfloat16's last place, and the float32 sum's own rounding
    assert ((total.double() - exact).abs() <= exact.abs() * 2.0**-8 + 1e-4).all()
    # a normal e4m3 value is at most 1/16 off, a uniform error of which has this root mean square
    assert 0.01 < relative_error(exact_rows(quantised), norm_truth(total, weight)) < 0.04


def test_without_an_addend_the_sum_is_the_residual_itself() -> None:
    residual, _, weight = norm_inputs(3, 384, 0, torch.bfloat16)
    total, normed, _ = norm_quant.add_rms_norm_both(residual, None, weight, eps=EPS)
    assert total is residual
    assert relative_error(normed, norm_truth(residual, weight)) < 2.0**-8


def test_both_forms_come_from_the_unrounded_norm() -> None:
    residual, addend, weight = norm_inputs(5, 640, 3, torch.float32)
    total, normed, quantised = norm_quant.add_rms_norm_both(residual, addend, weight, eps=EPS)
    alone = norm_quant.add_rms_norm_quantise(residual, addend, weight, eps=EPS)
    assert_same_bits(total, alone[0])
    assert_same_bits(quantised.values, alone[1].values)
    assert_same_bits(quantised.scales, alone[1].scales)
    # rounded once: dequantised first it would be 1/16 off
    assert_same_bits(normed, reference.rms_norm(total, weight, eps=EPS))


def test_the_gate_is_applied_after_the_norm() -> None:
    x, gate, weight = gated_inputs(3, 5)
    quantised = norm_quant.gated_rms_norm_quantise(x, gate, weight, eps=EPS)
    assert quantised.scales.shape == (3, 5)
    assert 0.01 < relative_error(exact_rows(quantised), gated_truth(x, gate, weight)) < 0.04


def test_wrong_inputs_are_refused() -> None:
    residual, addend, weight = norm_inputs(3, 384, 1, torch.bfloat16)
    with pytest.raises(ValueError, match=r"residual is torch\.float32"):
        norm_quant.add_rms_norm_quantise(residual.float(), addend, weight, eps=EPS)
    with pytest.raises(ValueError, match=r"addend has shape \[3, 384\]"):
        norm_quant.add_rms_norm_quantise(residual, residual, weight, eps=EPS)
    x, gate, gate_weight = gated_inputs(3, 5)
    with pytest.raises(ValueError, match="heads must be dense"):
        norm_quant.gated_rms_norm_quantise(
            x, gate.transpose(0, 1).contiguous().transpose(0, 1), gate_weight, eps=EPS
        )


@pytest.mark.parametrize(("rows", "columns", "parts", "dtype"), NORMS, ids=str)
def test_norm_kernel(
    interpreter: Interpreter, rows: int, columns: int, parts: int, dtype: torch.dtype
) -> None:
    inputs = norm_inputs(rows, columns, parts, dtype)
    assert_norm(
        interpreter.call(f"{MODULE}:add_rms_norm_quantise_triton", *inputs, eps=EPS, pdl=False), *inputs
    )


def test_norm_kernel_with_both_forms(interpreter: Interpreter) -> None:
    inputs = norm_inputs(5, 640, 3, torch.float32)
    total, normed, quantised = interpreter.call(
        f"{MODULE}:add_rms_norm_both_triton", *inputs, eps=EPS, pdl=False
    )
    assert_both(total, normed, quantised, *inputs)


@pytest.mark.parametrize(("rows", "heads"), GATED, ids=str)
def test_gated_kernel(interpreter: Interpreter, rows: int, heads: int) -> None:
    inputs = gated_inputs(rows, heads)
    got = interpreter.call(f"{MODULE}:gated_rms_norm_quantise_triton", *inputs, eps=EPS, pdl=False)
    known = norm_quant.gated_rms_norm_quantise_reference(*inputs, eps=EPS)
    assert_close("norm_quantise", exact_rows(got), exact_rows(known), gated_truth(*inputs))


@pytest.mark.parametrize(
    ("groups", "tiles", "addend", "parts", "warps", "registers"),
    [
        (64, 1, "*fp32", 6, norm_quant.FEW_ROWS_WARPS, norm_quant.FEW_ROWS_REGISTERS),
        (norm_quant.TILE_GROUPS, 5, "*bf16", 1, norm_quant.TILE_WARPS, None),
    ],
)
@pytest.mark.parametrize("both", [False, True])
def test_norm_kernel_compiles_without_spills(
    both: bool, groups: int, tiles: int, addend: str, parts: int, warps: int, registers: int | None
) -> None:
    compiled = compile_for_h200(
        norm_quant.add_rms_norm_kernel,
        {
            "p_residual": "*bf16",
            "p_addend": addend,
            "p_weight": "*bf16",
            "p_total": "*bf16",
            "p_normed": "*bf16",
            "p_values": "*fp8e4nv",
            "p_scales": "*fp32",
            "rows": "i32",
            "eps": "fp32",
        },
        {"COLUMNS": 5120, "GROUPS": groups, "TILES": tiles, "PARTS": parts, "ROUND": both, "PDL": True},
        warps=warps,
        registers=registers,
    )
    assert compiled.stack_bytes == 0
    # every load is of 16 bytes, with many threads too
    assert compiled.ptx.count("ld.global.v4") == compiled.ptx.count("ld.global") > 0
    # the product behind it takes no place while the one in front still runs
    assert compiled.ptx.index("griddepcontrol.wait") < compiled.ptx.index("griddepcontrol.launch_dependents")


@pytest.mark.parametrize("heads", [norm_quant.FEW_ROWS_HEADS, norm_quant.MANY_ROWS_HEADS])
def test_gated_kernel_compiles_without_spills(heads: int) -> None:
    compiled = compile_for_h200(
        norm_quant.gated_rms_norm_kernel,
        {
            "p_x": "*bf16",
            "p_gate": "*bf16",
            "p_weight": "*fp32",
            "p_values": "*fp8e4nv",
            "p_scales": "*fp32",
            "rows": "i32",
            "heads": "i32",
            "stride_gate": "i32",
            "eps": "fp32",
        },
        {"HEADS": heads, "PDL": True},
        aligned=frozenset({"heads", "stride_gate"}),
    )
    assert compiled.stack_bytes == 0
    assert "ld.global.v4" in compiled.ptx


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("rows", "columns", "parts", "dtype"),
    [*NORMS, (0, 5120, 1, torch.bfloat16), (16, 5120, 6, torch.float32), (4097, 5120, 1, torch.bfloat16)],
    ids=str,
)
def test_norm_kernel_on_the_gpu(
    gpu: torch.device, rows: int, columns: int, parts: int, dtype: torch.dtype
) -> None:
    inputs = norm_inputs(rows, columns, parts, dtype, gpu)
    got = norm_quant.add_rms_norm_quantise(*inputs, eps=EPS)
    assert_norm(got, *inputs)
    again = norm_quant.add_rms_norm_quantise(*inputs, eps=EPS)
    assert_same_bits(again[0], got[0])
    assert_same_bits(again[1].values, got[1].values)
    assert_both(*norm_quant.add_rms_norm_both(*inputs, eps=EPS), *inputs)


@pytest.mark.gpu
@pytest.mark.parametrize(("rows", "heads"), [*GATED, (0, 48), (16, 48), (4097, 48)], ids=str)
def test_gated_kernel_on_the_gpu(gpu: torch.device, rows: int, heads: int) -> None:
    x, gate, weight = gated_inputs(rows, heads, gpu)
    got = norm_quant.gated_rms_norm_quantise(x, gate, weight, eps=EPS)
    known = norm_quant.gated_rms_norm_quantise_reference(x, gate, weight, eps=EPS)
    assert_close("norm_quantise", exact_rows(got), exact_rows(known), gated_truth(x, gate, weight))
    assert_same_bits(norm_quant.gated_rms_norm_quantise(x, gate, weight, eps=EPS).values, got.values)
