"""Attention of few tokens over a paged cache: the reference against float64, the kernels against both."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sparkle.kernels import attention_join, attention_parts, verify_attention
from sparkle.kernels.attention_parts import Paged
from sparkle.kernels.attention_parts_fp8 import HEAD_DIMS
from sparkle.kernels.quantise import Fp8Rows, quantise_rows_reference
from sparkle.kernels.tolerance_relative import relative_error, relative_mismatch
from tests.kernels.ahead_of_time import SHARED_LIMIT_BYTES, compile_for_h200
from tests.kernels.closeness import assert_same_bits, exact_rows
from tests.kernels.interpreter import Interpreter
from tests.kernels.paged_inputs import PagedCase, PagedInputs, exact_attention, paged_inputs
from tests.kernels.proxy_order import unordered_products

MODULE = "sparkle.kernels.verify_attention"
SCALE = 0.4
TYPES = {
    "p_tables": "*i32",
    "p_starts": "*i64",
    "p_contexts": "*i64",
    "p_parts": "*fp32",
    "p_sums": "*fp32",
    "stride_row": "i32",
    "stride_head": "i32",
    "max_pages": "i32",
    "scale": "fp32",
}
CASES = [
    PagedCase(contexts=(0,), spans=(1,)),
    PagedCase(contexts=(63, 64, 65), spans=(1, 1, 1)),
    PagedCase(contexts=(62, 0, 130), spans=(3, 2, 16)),
    PagedCase(contexts=(15, 16, 17), spans=(2, 0, 1), page_tokens=16),
    PagedCase(contexts=(190,), spans=(5,), page_tokens=128, kv_heads=4),
    PagedCase(contexts=(70,), spans=(4,), cache=torch.bfloat16),
]
REAL_CASES = [
    PagedCase.of_27b((0,), (1,)),
    PagedCase.of_27b((255, 256, 257), (16, 1, 7)),
    PagedCase.of_27b((4097,), (16,)),
    PagedCase.of_27b((1000, 1, 63, 2000, 640, 64, 65, 129), (8,) * 8),
    PagedCase.of_27b((500, 31), (1, 4), page_tokens=16),
    PagedCase.of_27b((500, 31), (8, 4), cache=torch.bfloat16),
]


QUANTISED = [
    PagedCase(contexts=(62, 0, 130), spans=(3, 2, 16), heads=2, kv_heads=1, dim=128),
    PagedCase(contexts=(70,), spans=(4,), heads=2, kv_heads=1, dim=256, cache=torch.bfloat16),
    PagedCase(contexts=(9, 1), spans=(2, 1)),  # heads that are no whole groups
]


def bound_of(case: PagedCase, device: torch.device) -> str:
    if case.cache == torch.bfloat16:
        return "verify_attention_bf16"
    # the interpreter sums in float32
    on_tensor_cores = device.type == "cuda" and case.dim in HEAD_DIMS and case.page_tokens % 64 == 0
    return "verify_attention_fp8" if on_tensor_cores else "verify_attention"


def width_of(case: PagedCase) -> int:
    return max(case.spans)


def assert_attention(case: PagedCase, inputs: PagedInputs, got: Tensor, *, gated: bool) -> None:
    exact = exact_attention(inputs, scale=SCALE, gated=gated)
    reference = verify_attention.verify_attention_reference(
        Paged(*inputs.attended), scale=SCALE, gate=inputs.gate if gated else None
    )
    mismatch = relative_mismatch(bound_of(case, got.device), got, reference, exact)
    assert mismatch is None, mismatch


def assert_quantised(case: PagedCase, inputs: PagedInputs, got: Fp8Rows) -> None:
    exact = exact_attention(inputs, scale=SCALE, gated=True).flatten(1)
    reference = verify_attention.verify_attention_quantised(
        *(part.cpu() for part in inputs.attended), width=width_of(case), scale=SCALE, gate=inputs.gate.cpu()
    )
    bound = "verify_attention_quantise"
    mismatch = relative_mismatch(bound, exact_rows(got), exact_rows(reference).to(exact.device), exact)
    assert mismatch is None, mismatch


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("gated", [False, True])
def test_reference_is_the_formula(case: PagedCase, gated: bool) -> None:
    inputs = paged_inputs(case, seed=1, dtype=torch.float32)
    if case.cache == torch.bfloat16:
        inputs = paged_inputs(case, seed=1)
    got = verify_attention.verify_attention(
        *inputs.attended, width=width_of(case), scale=SCALE, gate=inputs.gate if gated else None
    )
    exact = exact_attention(inputs, scale=SCALE, gated=gated)
    assert relative_error(got, exact) < (1e-6 if got.dtype == torch.float32 else 2.0**-8)


def test_an_empty_batch_is_an_empty_result() -> None:
    inputs = paged_inputs(PagedCase(contexts=(), spans=()), seed=1)
    paged = Paged(*inputs.attended)
    got = verify_attention.verify_attention_triton(paged, width=1, scale=SCALE, pdl=False)
    assert got.shape == (0, 4, 32)
    rows = verify_attention.verify_attention_quantised_triton(paged, width=1, scale=SCALE, pdl=False)
    assert (rows.values.shape, rows.scales.shape) == ((0, 128), (0, 1))


def test_every_multiprocessor_has_work() -> None:
    assert attention_parts.num_splits(1, 4, 33_000) == 33
    assert attention_parts.num_splits(8, 4, 33_000) == 4
    assert attention_parts.num_splits(64, 4, 33_000) == 1
    # never more programs than tiles
    assert attention_parts.num_splits(1, 4, 100) == 2


def test_wrong_inputs_are_refused() -> None:
    case = CASES[2]
    inputs = paged_inputs(case, seed=1)
    query, keys, values, *rest = inputs.attended
    with pytest.raises(ValueError, match="width is 17 but must be 1 to 16"):
        verify_attention.verify_attention(query, keys, values, *rest, width=17, scale=1.0)
    with pytest.raises(ValueError, match=r"value_pages is torch\.bfloat16"):
        verify_attention.verify_attention(query, keys, values.bfloat16(), *rest, width=16, scale=1.0)
    with pytest.raises(ValueError, match="query has 3 heads"):
        verify_attention.verify_attention(query[:, :3], keys, values, *rest, width=16, scale=1.0)
    with pytest.raises(ValueError, match="must be contiguous"):
        verify_attention.verify_attention(query, keys[:, ::2], values[:, ::2], *rest, width=16, scale=1.0)


@pytest.mark.parametrize("case", QUANTISED, ids=str)
def test_quantised_is_the_gated_result_in_groups(case: PagedCase) -> None:
    inputs = paged_inputs(case, seed=1, dtype=torch.float32)
    width, gate = width_of(case), inputs.gate
    got = verify_attention.verify_attention_quantised(*inputs.attended, width=width, scale=SCALE, gate=gate)
    plain = verify_attention.verify_attention(*inputs.attended, width=width, scale=SCALE, gate=gate)
    want = quantise_rows_reference(plain.flatten(1))
    assert_same_bits(got.values, want.values)
    assert_same_bits(got.scales, want.scales)


@pytest.mark.parametrize("case", QUANTISED, ids=str)
def test_quantised_kernel(interpreter: Interpreter, case: PagedCase) -> None:
    inputs = paged_inputs(case, seed=2)
    got = interpreter.call(
        f"{MODULE}:verify_attention_quantised_triton",
        Paged(*inputs.attended),
        width=width_of(case),
        scale=SCALE,
        gate=inputs.gate,
        pdl=False,
    )
    assert_quantised(case, inputs, got)


@pytest.mark.parametrize("quantise", [False, True])
@pytest.mark.parametrize("splits", [1, 4, 33, 132])
def test_join_compiles_without_spills(splits: int, quantise: bool) -> None:
    padded = 1 << (splits - 1).bit_length()
    compiled = compile_for_h200(
        attention_join.join_parts_kernel,
        {
            "p_parts": "*fp16",
            "p_sums": "*fp32",
            "p_gate": "*bf16",
            "p_out": "*fp8e4nv" if quantise else "*bf16",
            "p_scales": "*fp32",
            "rows": "i32",
            "stride_row": "i32",
            "stride_head": "i32",
        },
        {
            "GATED": True,
            "QUANTISE": quantise,
            "DIM": 256,
            "LANES": attention_join.LANES,
            "SPLITS": splits,
            "PADDED": padded,
            "STEP": min(attention_join.PARTS_AT_ONCE, padded),
            "PDL": True,
        },
        aligned=frozenset({"stride_row", "stride_head"}),
        warps=attention_join.WARPS,
    )
    assert compiled.stack_bytes == 0
    before, _ = compiled.ptx.split("griddepcontrol.wait", 1)
    assert "ld.global" not in before


@pytest.mark.parametrize("case", CASES, ids=str)
def test_kernel(interpreter: Interpreter, case: PagedCase) -> None:
    inputs = paged_inputs(case, seed=2)
    gated = case.page_tokens == 64
    got = interpreter.call(
        f"{MODULE}:verify_attention_triton",
        Paged(*inputs.attended),
        width=width_of(case),
        scale=SCALE,
        gate=inputs.gate if gated else None,
        pdl=False,
    )
    assert got.dtype == torch.bfloat16
    assert_attention(case, inputs, got, gated=gated)


@pytest.mark.parametrize("width", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("cache", [torch.float8_e4m3fn, torch.bfloat16], ids=str)
def test_kernel_compiles_to_tensor_core_products(width: int, cache: torch.dtype) -> None:
    settings = attention_parts.launch_settings(width * 6, cache)
    narrow = cache.itemsize == 1
    pages = "*fp8e4nv" if narrow else "*bf16"
    compiled = compile_for_h200(
        attention_parts.attention_parts_kernel,
        TYPES | {"p_query": "*bf16", "p_keys": pages, "p_values": pages},
        {
            "HEADS": 24,
            "GROUP": 6,
            "DIM": 256,
            # of e4m3 pages whole tiles go to the other kernel
            "PAGE": 16 if narrow else 64,
            "ROWS": settings.rows,
            "TILE": attention_parts.TILE_TOKENS,
            "SPLITS": 33,
            "PDL": True,
        },
        aligned=frozenset({"stride_row", "stride_head"}),
        warps=settings.warps,
        stages=settings.stages,
    )
    # 64 rows of e4m3 pages convert queries, keys and values at once, ten registers too many: the engine has
    # passes of so many rows only with drafts, and this kernel only with pages that are no whole tiles
    assert compiled.stack_bytes <= (40 if narrow and settings.rows == 64 else 0)
    # as many programs of a multiprocessor as the split counts on
    fitting = settings.programs // attention_parts.PROGRAMS
    assert fitting == 1 or settings.rows < 64 or fitting * compiled.shared_bytes <= SHARED_LIMIT_BYTES
    assert compiled.shared_bytes <= SHARED_LIMIT_BYTES
    assert "cp.async" in compiled.ptx
    assert unordered_products(compiled.ptx) == 0
    if settings.rows < 64:  # the wide instruction needs as many
        assert "mma.sync.aligned.m16n8k16.row.col.f32." in compiled.ptx
    else:
        assert "wgmma.mma_async.sync.aligned.m64n" in compiled.ptx
        assert "mma.sync.aligned.m16n8" not in compiled.ptx


@pytest.mark.gpu
@pytest.mark.parametrize("case", [*CASES, *REAL_CASES], ids=str)
def test_kernel_on_the_gpu(gpu: torch.device, case: PagedCase) -> None:
    inputs = paged_inputs(case, seed=3).on(gpu)

    def attend() -> Tensor:
        return verify_attention.verify_attention(
            *inputs.attended, width=width_of(case), scale=SCALE, gate=inputs.gate
        )

    got = attend()
    assert_attention(case, inputs, got, gated=True)
    assert torch.equal(attend(), got)


@pytest.mark.gpu
@pytest.mark.parametrize("case", [*QUANTISED[:2], *REAL_CASES], ids=str)
def test_quantised_kernel_on_the_gpu(gpu: torch.device, case: PagedCase) -> None:
    inputs = paged_inputs(case, seed=4).on(gpu)

    def attend() -> Fp8Rows:
        return verify_attention.verify_attention_quantised(
            *inputs.attended, width=width_of(case), scale=SCALE, gate=inputs.gate
        )

    got, again = attend(), attend()
    assert_quantised(case, inputs, got)
    assert_same_bits(again.values, got.values)
    assert_same_bits(again.scales, got.scales)
