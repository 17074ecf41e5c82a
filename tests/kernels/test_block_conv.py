"""Two-tap convolutions: the reference against plain loops in float64, the kernels against both."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from sparkle.kernels import block_conv
from sparkle.kernels.block_conv import BlockTaps
from sparkle.kernels.quantise import Fp8Rows
from tests.kernels.ahead_of_time import compile_for_h200
from tests.kernels.closeness import assert_close, assert_same_bits, exact_rows
from tests.kernels.fp8_inputs import CPU, random_matrix
from tests.kernels.interpreter import Interpreter
from tests.kernels.reduced_lanes import mixed_reductions

MODULE = "sparkle.kernels.block_conv"


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    blocks: int
    width: int
    columns: int
    channels: int
    """Of a group."""
    tap_parts: int = 1
    parts: int = 1

    @property
    def rows(self) -> int:
        return self.blocks * self.width


CASES = [Case(1, 1, 128, 16), Case(3, 2, 256, 8, 2, 3), Case(2, 5, 1152, 16, 3), Case(1, 3, 128, 128, 1, 2)]
REAL_CASES = [Case(1, 8, 5120, 16, 8, 3), Case(8, 8, 5120, 16, 8, 3), Case(8, 16, 5120, 16, 1, 1)]


def taps_of(case: Case, device: torch.device = CPU) -> BlockTaps:
    """The taps behind, as they lie in a product with those in front."""
    groups = case.columns // case.channels
    wide = torch.randn(case.tap_parts, case.rows, 4 * groups, generator=torch.Generator().manual_seed(5))
    dynamic = wide.view(case.tap_parts, case.rows, 2, 2, groups)[:, :, 1].to(device)
    base = torch.randn(2, case.columns, generator=torch.Generator().manual_seed(6)).to(device)
    return BlockTaps(base, dynamic, case.width)


def truth(x: Tensor, taps: BlockTaps) -> Tensor:
    """The formula, written out by row: float64 [M, D]."""
    rows, columns = x.shape
    dynamic = taps.dynamic.double().sum(dim=0).repeat_interleave(columns // taps.dynamic.shape[3], dim=2)
    out = torch.empty(rows, columns, dtype=torch.float64, device=x.device)
    for row in range(rows):
        each = taps.base.double() + dynamic[row]
        out[row] = each[0] * x[row].double()
        if row % taps.width:
            out[row] += each[1] * x[row - 1].double()
    return out


def addition(case: Case, device: torch.device = CPU) -> tuple[Tensor, Tensor]:
    """Residual and parts."""
    parts = [
        random_matrix(case.rows, case.columns, seed=seed, dtype=torch.float32, device=device)
        for seed in range(2, 2 + case.parts)
    ]
    return random_matrix(case.rows, case.columns, seed=1, device=device), torch.stack(parts)


def assert_quantised(got: Fp8Rows, x: Tensor, taps: BlockTaps) -> None:
    known = block_conv.block_conv_quantise_reference(x, taps)
    assert_close("norm_quantise", exact_rows(got), exact_rows(known), truth(x, taps))


def assert_added(got: Tensor, residual: Tensor, parts: Tensor, taps: BlockTaps) -> None:
    exact = residual.double() + truth(parts.double().sum(dim=0), taps)
    assert_close("norm_round", got, block_conv.block_conv_add_reference(residual, parts, taps), exact)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_reference_is_the_formula(case: Case) -> None:
    taps = taps_of(case)
    x = random_matrix(case.rows, case.columns, seed=3, dtype=torch.float32)
    assert torch.allclose(block_conv.convolved(x.double(), taps), truth(x, taps), rtol=1e-6, atol=1e-3)
    assert torch.allclose(block_conv.block_conv(x, taps).double(), truth(x, taps), rtol=1e-5, atol=1e-3)
    assert_quantised(block_conv.block_conv_quantise(x.bfloat16(), taps), x.bfloat16(), taps)
    residual, parts = addition(case)
    assert_added(block_conv.block_conv_add(residual, parts, taps), residual, parts, taps)


def test_nothing_comes_from_the_block_in_front() -> None:
    case = Case(2, 3, 128, 16)
    taps, x = taps_of(case), torch.randn(6, 128)
    other = x.clone()
    other[2] = torch.nan
    assert torch.equal(block_conv.block_conv(other, taps)[3:], block_conv.block_conv(x, taps)[3:])


def test_wrong_inputs_are_refused() -> None:
    case = Case(2, 3, 128, 16)
    taps, x = taps_of(case), torch.randn(6, 128).bfloat16()
    with pytest.raises(ValueError, match="width is 4 but x has 6 rows"):
        block_conv.block_conv_quantise(x, dataclasses.replace(taps, width=4))
    with pytest.raises(ValueError, match=r"x is torch\.float32"):
        block_conv.block_conv_quantise(x.float(), taps)
    with pytest.raises(ValueError, match=r"taps\.base has shape"):
        block_conv.block_conv(x, dataclasses.replace(taps, base=taps.base[:, :64]))
    with pytest.raises(ValueError, match="one tap for 48 columns"):
        block_conv.block_conv_quantise(torch.randn(6, 384).bfloat16(), taps_of(Case(2, 3, 384, 48)))
    with pytest.raises(ValueError, match=r"parts has shape \[6, 128\]"):
        block_conv.block_conv_add(x, x, taps)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_kernels(interpreter: Interpreter, case: Case) -> None:
    taps, x = taps_of(case), random_matrix(case.rows, case.columns, seed=3)
    got = interpreter.call(f"{MODULE}:block_conv_quantise_triton", x, taps, pdl=False)
    assert_quantised(got, x, taps)
    residual, parts = addition(case)
    name = f"{MODULE}:block_conv_add_triton"
    assert_added(interpreter.call(name, residual, parts, taps, pdl=False), residual, parts, taps)


def test_kernels_compile_without_spills() -> None:
    types = dict.fromkeys(("p_x", "p_residual", "p_out"), "*bf16")
    types |= dict.fromkeys(("p_parts", "p_base", "p_dynamic", "p_scales"), "*fp32")
    types |= dict.fromkeys(("rows", "columns", "width", "stride_part", "stride_row", "stride_tap"), "i32")
    types |= {"p_values": "*fp8e4nv"}
    sizes = {"GROUPS": block_conv.GROUPS_PER_PROGRAM, "CHANNELS": 16, "TAP_PARTS": 8, "PDL": True}
    aligned = frozenset({"columns", "stride_part", "stride_row", "stride_tap"})
    for kernel, more in (
        (block_conv.block_conv_quantise_kernel, {}),
        (block_conv.block_conv_add_kernel, {"PARTS": 3}),
    ):
        compiled = compile_for_h200(kernel, types, {**sizes, **more}, aligned=aligned)
        assert compiled.stack_bytes == 0
        assert mixed_reductions(compiled.ttgir) == 0
        assert "ld.global.v4" in compiled.ptx


def test_lanes_apart_are_found() -> None:
    layout = (
        "#linear = #ttg.linear<{register = [[0, 1]], lane = [[0, 8], [1, 0], [0, 16]], warp = [[0, 32]]}>"
    )
    reduce = '"tt.reduce"(%1) <{axis = AXIS : i32}> ({ ^bb0(%2: f32): }) : (TENSOR) -> '
    whole, sliced = "tensor<8x128xf32, #linear>", "tensor<128xf32, #ttg.slice<{dim = 0, parent = #linear}>>"
    for tensor, axis, mixed in ((whole, 1, 1), (whole, 0, 0), (sliced, 0, 1)):
        text = f"{layout}\n{reduce.replace('AXIS', str(axis)).replace('TENSOR', tensor)}"
        assert mixed_reductions(text) == mixed


@pytest.mark.gpu
@pytest.mark.parametrize("case", [*CASES, *REAL_CASES, Case(0, 8, 5120, 16)], ids=str)
def test_kernels_on_the_gpu(gpu: torch.device, case: Case) -> None:
    taps, x = taps_of(case, gpu), random_matrix(case.rows, case.columns, seed=3, device=gpu)
    got = block_conv.block_conv_quantise(x, taps)
    assert_quantised(got, x, taps)
    assert_same_bits(block_conv.block_conv_quantise(x, taps).values, got.values)
    residual, parts = addition(case, gpu)
    added = block_conv.block_conv_add(residual, parts, taps)
    assert_added(added, residual, parts, taps)
    assert_same_bits(block_conv.block_conv_add(residual, parts, taps), added)
