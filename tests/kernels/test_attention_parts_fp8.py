"""The attention's parts of an e4m3 cache: joined, as the reference says; a row alike in any company."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from sparkle.kernels.attention_join import join_parts
from sparkle.kernels.attention_parts import Paged
from sparkle.kernels.attention_parts_fp8 import (
    attention_parts_fp8,
    attention_parts_fp8_kernel,
    fp8_launch_settings,
    takes,
)
from sparkle.kernels.tolerance_relative import relative_error, relative_mismatch
from sparkle.kernels.verify_attention import verify_attention_reference
from tests.kernels.ahead_of_time import SHARED_LIMIT_BYTES, compile_for_h200
from tests.kernels.interpreter import Interpreter
from tests.kernels.paged_inputs import PagedCase, PagedInputs, exact_attention, paged_inputs
from tests.kernels.proxy_order import unordered_products
from tests.kernels.test_verify_attention import TYPES

SCALE = 0.4
CASES = [
    PagedCase(contexts=(0,), spans=(1,)),
    PagedCase(contexts=(63, 64, 65), spans=(1, 1, 1)),
    PagedCase(contexts=(62, 0, 130), spans=(3, 0, 16)),
    PagedCase(contexts=(190,), spans=(5,), page_tokens=128, kv_heads=4),
]
LONG = PagedCase(contexts=(700,), spans=(11,))
"""More tiles a program than find a place in shared memory, where there are few programs."""


def attend(paged: Paged, gate: Tensor, *, width: int, programs: int) -> Tensor:
    """Parts, joined; runs in the interpreter's process too."""
    settings = replace(fp8_launch_settings(width * paged.group), programs=programs)
    parts = attention_parts_fp8(paged, width=width, scale=SCALE, pdl=False, settings=settings)
    out = torch.empty(paged.query.shape, dtype=torch.bfloat16, device=gate.device)
    join_parts(parts, gate, out, pdl=False)
    return out


def assert_attention(inputs: PagedInputs, got: Tensor) -> None:
    exact = exact_attention(inputs, scale=SCALE, gated=True)
    reference = verify_attention_reference(Paged(*inputs.attended), scale=SCALE, gate=inputs.gate)
    mismatch = relative_mismatch("verify_attention", got, reference, exact)
    assert mismatch is None, mismatch


def test_it_is_for_whole_tiles_of_wide_heads() -> None:
    wide = PagedCase.of_27b((3,), (1,))
    for case, taken in (
        (wide, True),
        (replace(wide, page_tokens=128), True),
        (replace(wide, page_tokens=16), False),
        (replace(wide, dim=64), False),
        (replace(wide, cache=torch.bfloat16), False),
    ):
        assert takes(Paged(*paged_inputs(case, seed=1).attended)) is taken


@pytest.mark.parametrize("case", CASES, ids=str)
def test_kernel(interpreter: Interpreter, case: PagedCase) -> None:
    inputs = paged_inputs(case, seed=2)
    got = interpreter.call(
        f"{__name__}:attend", Paged(*inputs.attended), inputs.gate, width=max(case.spans), programs=132
    )
    assert_attention(inputs, got)


@pytest.mark.parametrize("heads", [4, 12], ids=["four warps", "eight warps"])
def test_kernel_of_more_tiles_than_stages(interpreter: Interpreter, heads: int) -> None:
    inputs = paged_inputs(replace(LONG, heads=heads), seed=3)
    paged = Paged(*inputs.attended)
    settings = fp8_launch_settings(11 * paged.group)
    assert settings.stages < 6  # 12 tiles, two programs a kv head
    assert settings.warps == (4 if heads == 4 else 8)
    got = interpreter.call(f"{__name__}:attend", paged, inputs.gate, width=11, programs=4)
    assert_attention(inputs, got)


def test_float32_queries(interpreter: Interpreter) -> None:
    # what two e4m3 numbers leave of 24 bits is below bfloat16's own rounding
    inputs = paged_inputs(CASES[2], seed=4)
    noise = 1.0 + torch.rand(inputs.query.shape) * 2.0**-9
    fine = replace(inputs, query=inputs.query.float() * noise)
    got = interpreter.call(f"{__name__}:attend", Paged(*fine.attended), fine.gate, width=16, programs=132)
    assert relative_error(got, exact_attention(fine, scale=SCALE, gated=True)) < 2.0**-8


@pytest.mark.parametrize("dim", [128, 256])
@pytest.mark.parametrize("width", [1, 8, 16])
def test_kernel_compiles_to_wide_products(width: int, dim: int) -> None:
    settings = fp8_launch_settings(width * 6)
    compiled = compile_for_h200(
        attention_parts_fp8_kernel,
        TYPES | {"p_query": "*bf16", "p_keys": "*fp8e4nv", "p_values": "*fp8e4nv", "p_parts": "*fp16"},
        {
            "HEADS": 24,
            "GROUP": 6,
            "DIM": dim,
            "PAGE": 64,
            "ROWS": settings.rows,
            "TILE": 64,
            "SPLITS": 33,
            "STAGES": settings.stages,
            "WARPS": settings.warps,
            "PDL": True,
        },
        aligned=frozenset({"stride_row", "stride_head"}),
        warps=settings.warps,
    )
    assert compiled.stack_bytes == 0
    assert compiled.shared_bytes <= SHARED_LIMIT_BYTES
    # both halves of the queries times the keys as they are, then weights times values
    assert compiled.ptx.count("wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3") == 2 * 2 * dim // 32
    assert f"wgmma.mma_async.sync.aligned.m64n{dim}k16.f32.f16.f16" in compiled.ptx
    assert unordered_products(compiled.ptx) == 0
    # pages that hold no new token are copied before the wait, queries are read behind it
    _, copies, rest = compiled.ptx.split("griddepcontrol.wait")
    assert "cp.async" in copies
    assert "ld.global.v4" not in copies
    assert "ld.global.v4" in rest


@pytest.mark.gpu
@pytest.mark.parametrize("width", [1, 3, 16])
def test_a_row_is_the_same_whatever_the_width(gpu: torch.device, width: int) -> None:
    # 16 rows at once, or each behind as many tokens as it sees: the same parts of the same tiles
    case = PagedCase.of_27b((4096,), (16,))
    inputs = paged_inputs(case, seed=5).on(gpu)
    whole = attend(Paged(*inputs.attended), inputs.gate, width=16, programs=132)
    for first in range(0, 16 - width + 1, width):
        rows = slice(first, first + width)
        paged = replace(
            Paged(*inputs.attended),
            query=inputs.query[rows],
            span_starts=torch.tensor([0, width], device=gpu),
            contexts=inputs.contexts + first,
        )
        assert torch.equal(attend(paged, inputs.gate[rows], width=width, programs=132), whole[rows])


@pytest.mark.gpu
def test_a_row_is_the_same_beside_others(gpu: torch.device) -> None:
    case = PagedCase.of_27b((3000, 64, 2111), (4, 16, 1))
    inputs = paged_inputs(case, seed=6).on(gpu)
    # as many programs a sequence as alone
    together = attend(Paged(*inputs.attended), inputs.gate, width=16, programs=3 * 132)
    for span, (start, stop) in enumerate(((0, 4), (4, 20), (20, 21))):
        paged = replace(
            Paged(*inputs.attended),
            query=inputs.query[start:stop],
            page_tables=inputs.page_tables[span : span + 1],
            span_starts=torch.tensor([0, stop - start], device=gpu),
            contexts=inputs.contexts[span : span + 1],
        )
        alone = attend(paged, inputs.gate[start:stop], width=16, programs=132)
        assert torch.equal(alone, together[start:stop])
