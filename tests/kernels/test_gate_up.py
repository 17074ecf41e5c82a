"""The first half of an MLP in one op: against float64, what it compiles to, and its rows apart on the GPU."""

from __future__ import annotations

import re

import pytest
import torch

from sparkle.kernels import gate_up
from sparkle.kernels.fp8_linear import fp8_linear_reference
from sparkle.kernels.quantise import Fp8Blocks, Fp8Rows
from sparkle.kernels.silu_mul_quant import silu_mul_quantise_reference
from sparkle.kernels.tolerance_relative import relative_error
from sparkle.kernels.tuning import ring_of
from sparkle.kernels.weight_ring import TILE_ROWS, power_of_two
from tests.kernels.ahead_of_time import TWO_PROGRAMS_SHARED_BYTES, compile_for_h200, e4m3_tiles
from tests.kernels.closeness import assert_close, assert_same_bits, exact_blocks, exact_rows
from tests.kernels.fp8_inputs import random_blocks, random_rows

MULTIPROCESSOR_REGISTERS = 65_536


def truth(x: Fp8Rows, w: Fp8Blocks) -> torch.Tensor:
    gate, up = (exact_rows(x) @ exact_blocks(w).t()).chunk(2, dim=1)
    return gate / (1.0 + (-gate).exp()) * up


def test_the_first_half_is_the_gate() -> None:
    x, w = random_rows(5, 384, seed=1), random_blocks(512, 384, seed=2)
    got = gate_up.gate_up_silu_quantise(x, w)
    assert got.values.shape == (5, 256)
    assert got.scales.shape == (5, 2)
    # the rounding of e4m3 alone: an exchange of the halves would be an error of about 1
    assert 0.01 < relative_error(exact_rows(got), truth(x, w)) < 0.04


def test_wrong_inputs_are_refused() -> None:
    with pytest.raises(ValueError, match="w has 384 rows but must have a multiple of 256"):
        gate_up.gate_up_silu_quantise(random_rows(5, 384, seed=1), random_blocks(384, 384, seed=2))
    with pytest.raises(ValueError, match="x has 384 columns but w has 256"):
        gate_up.gate_up_silu_quantise(random_rows(5, 384, seed=1), random_blocks(256, 256, seed=2))


@pytest.mark.parametrize("width", [16, 32, 64])
def test_kernel_compiles_to_tensor_core_code(width: int) -> None:
    settings = ring_of(1, 2, rows=width)
    compiled = compile_for_h200(
        gate_up.gate_up_kernel,
        {
            "w_tiles": e4m3_tiles(TILE_ROWS),
            "x_tiles": e4m3_tiles(width),
            "p_xs": "*fp32",
            "p_ws": "*fp32",
            "p_values": "*fp8e4nv",
            "p_scales": "*fp32",
            "rows": "i32",
            "columns": "i32",
        },
        {
            "GROUPS": 40,
            "BM": width,
            "STAGES": settings.stages,
            "ROW_STAGES": settings.row_stages,
            "SLOTS": power_of_two(40),
            "PDL": True,
        },
        warps=settings.warps,
    )
    assert set(re.findall(r"wgmma\.mma_async\S*\.(m64n\d+k32)\.", compiled.ptx)) == {f"m64n{width}k32"}
    # bulk copies alone write what the tensor cores read: threads store scales
    assert set(re.findall(r"local_store .*tensor<(?:\d+x)+(\w+),", compiled.ttgir)) == {"f32"}
    assert compiled.stack_bytes == 0
    assert compiled.shared_bytes <= TWO_PROGRAMS_SHARED_BYTES
    wait = compiled.ptx.index("griddepcontrol.wait")
    copies = [match.start() for match in re.finditer(r"cp\.async\.bulk", compiled.ptx)]
    assert sum(place < wait for place in copies) == settings.stages
    # a chip's worth of programs and four more: two must find a place on one multiprocessor
    assert compiled.registers * settings.warps * 32 <= MULTIPROCESSOR_REGISTERS // 2


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [0, 1, 5, 16, 17, 33, 64, 65, 128])
@pytest.mark.parametrize(("both", "depth"), [(512, 384), (256, 128), (34816, 5120)], ids=str)
def test_kernel_on_the_gpu(gpu: torch.device, both: int, depth: int, rows: int) -> None:
    x, w = random_rows(rows, depth, seed=1, device=gpu), random_blocks(both, depth, seed=2, device=gpu)
    got = gate_up.gate_up_silu_quantise(x, w)
    assert got.scales.stride() == (1, rows) or rows < 2
    reference = silu_mul_quantise_reference(fp8_linear_reference(x, w))
    assert_close("norm_quantise", exact_rows(got), exact_rows(reference), truth(x, w))
    again = gate_up.gate_up_silu_quantise(x, w)
    assert_same_bits(again.values, got.values)
    assert_same_bits(again.scales, got.scales)


@pytest.mark.gpu
def test_a_row_does_not_depend_on_the_rows_beside_it(gpu: torch.device) -> None:
    w = random_blocks(34816, 5120, seed=2, device=gpu)
    every = random_rows(64, 5120, seed=1, device=gpu)
    whole = gate_up.gate_up_silu_quantise(every, w)
    for rows in (1, 15, 16, 17, 32, 33, 63):
        few = Fp8Rows(every.values[:rows], every.scales[:rows].t().contiguous().t())
        got = gate_up.gate_up_silu_quantise(few, w)
        assert_same_bits(got.values, whole.values[:rows])
        assert_same_bits(got.scales, whole.scales[:rows])
