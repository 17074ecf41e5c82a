"""Attention of blocks over rings: the reference against plain loops in float64, the kernels against both."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from sparkle.kernels import ring_attention
from sparkle.kernels.attention_parts import TILE_TOKENS
from sparkle.kernels.quantise import Fp8Rows, quantise_rows_reference
from sparkle.kernels.ring_attention import Rings
from sparkle.kernels.tolerance_relative import relative_error
from tests.kernels.ahead_of_time import SHARED_LIMIT_BYTES, compile_for_h200
from tests.kernels.closeness import assert_close, exact_rows
from tests.kernels.fp8_inputs import CPU
from tests.kernels.interpreter import Interpreter
from tests.kernels.proxy_order import unordered_products

SCALE = 0.3


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    contexts: tuple[int, ...]
    width: int
    window: int = 40
    heads: int = 4
    kv_heads: int = 2
    dim: int = 64


CASES = [
    Case((0,), 1),
    Case((39, 40, 41), 3),
    Case((5, 79, 1000), 16),
    Case((64, 130), 2, window=64, dim=128, heads=2, kv_heads=1),
    Case((100,), 5, window=200, heads=3, kv_heads=3, dim=128),
]
REAL_CASES = [
    Case(contexts, width, window=2048, heads=32, kv_heads=8, dim=128)
    for contexts, width in (
        ((33_000,), 8),
        ((2047,), 16),
        ((1, 0, 63, 2048, 2049, 640, 64, 33_000), 8),
        ((9,), 2),
    )
]


def rings_of(case: Case, device: torch.device = CPU, dtype: torch.dtype = torch.bfloat16) -> Rings:
    """Slots in another order than the sequences, an unused place behind them; unfilled cells are NaN."""
    draw = torch.Generator().manual_seed(len(case.contexts) + case.width)
    count = len(case.contexts)
    cells = case.window + 16
    keys, values = torch.randn(2, count + 2, cells, case.kv_heads, case.dim, generator=draw)
    slots = torch.randperm(count + 1, generator=draw)[:count]
    for part in (keys, values):
        part[:, case.window + case.width :] = torch.nan
        for slot, context in zip(slots, case.contexts, strict=True):
            part[int(slot), context : case.window] = torch.nan
    query = torch.randn((count + 1) * case.width, case.heads, case.dim, generator=draw)
    return Rings(
        query=query.to(device, dtype),
        keys=keys.to(device, dtype),
        values=values.to(device, dtype),
        slots=torch.cat((slots, torch.tensor([-1]))).to(device),
        contexts=torch.tensor([*case.contexts, 7], device=device),
        window=case.window,
        width=case.width,
    )


def used(case: Case, rows: Tensor) -> Tensor:
    """Those of real places."""
    return rows[: len(case.contexts) * case.width]


def truth(case: Case, rings: Rings) -> Tensor:
    """Row by row over the positions that it sees: float64 [rows of real places, heads · dim]."""
    out: list[Tensor] = []
    group = case.heads // case.kv_heads
    for place, context in enumerate(case.contexts):
        slot = int(rings.slots[place])
        for row in range(case.width):
            first = max(0, context + row - case.window + 1)
            cells = [position % case.window for position in range(first, context)]
            cells += range(case.window, case.window + case.width)
            key, value = (
                part[slot, cells].double().repeat_interleave(group, dim=1)  # [cells, heads, dim]
                for part in (rings.keys, rings.values)
            )
            query = rings.query[place * case.width + row].double()
            weights = (torch.einsum("chd,hd->ch", key, query) * SCALE).softmax(0)
            out.append(torch.einsum("ch,chd->hd", weights, value).flatten())
    return torch.stack(out)


def assert_attention(case: Case, rings: Rings, got: Fp8Rows) -> None:
    known = quantise_rows_reference(ring_attention.ring_attention_reference(rings, scale=SCALE).flatten(1))
    rows = used(case, exact_rows(got)), used(case, exact_rows(known))
    assert_close("ring_attention_quantise", *rows, truth(case, rings))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_reference_is_the_formula(case: Case) -> None:
    rings = rings_of(case, dtype=torch.float32)
    got = ring_attention.ring_attention(rings, scale=SCALE)
    assert relative_error(used(case, got).flatten(1), truth(case, rings)) < 1e-6
    assert_attention(case, rings, ring_attention.ring_attention_quantised(rings, scale=SCALE))


def test_wrong_inputs_are_refused() -> None:
    rings = rings_of(Case((3,), 2))
    with pytest.raises(ValueError, match="width is 3 but must be 1 to 16 and make 4 rows of 2 blocks"):
        ring_attention.ring_attention(dataclasses.replace(rings, width=3), scale=1.0)
    with pytest.raises(ValueError, match="window is 55 but"):
        ring_attention.ring_attention(dataclasses.replace(rings, window=55), scale=1.0)
    odd = dataclasses.replace(rings, query=rings.query[:, :3].contiguous())
    with pytest.raises(ValueError, match="query has 3 heads"):
        ring_attention.ring_attention(odd, scale=1.0)
    keys = rings.keys[..., :24].contiguous()
    narrow = dataclasses.replace(rings, query=rings.query[..., :24].contiguous(), keys=keys, values=keys)
    with pytest.raises(ValueError, match="must make groups of 128"):
        ring_attention.ring_attention_quantised(narrow, scale=1.0)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_kernels(interpreter: Interpreter, case: Case) -> None:
    rings = rings_of(case)
    name = "sparkle.kernels.ring_attention:ring_attention_quantised_triton"
    assert_attention(case, rings, interpreter.call(name, rings, scale=SCALE, pdl=False))


@pytest.mark.parametrize("width", [2, 8, 16])
def test_kernel_compiles_without_spills(width: int) -> None:
    types = dict.fromkeys(("p_query", "p_keys", "p_values"), "*bf16")
    types |= dict.fromkeys(("p_slots", "p_contexts"), "*i64")
    types |= {"p_parts": "*fp32", "p_sums": "*fp32", "spare": "i32", "scale": "fp32"}
    sizes = {"HEADS": 32, "GROUP": 4, "DIM": 128, "WINDOW": 2048, "CELLS": 2064, "WIDTH": width}
    sizes |= {"ROWS": max(16, 4 * width), "TILE": TILE_TOKENS}
    compiled = compile_for_h200(
        ring_attention.ring_attention_parts_kernel,
        types,
        {**sizes, "SPLITS": 33, "PDL": True},
        stages=ring_attention.STAGES,
    )
    assert compiled.stack_bytes == 0
    assert compiled.shared_bytes * 2 < SHARED_LIMIT_BYTES
    assert unordered_products(compiled.ptx) == 0
    assert "ld.global.v4" in compiled.ptx or "cp.async.cg" in compiled.ptx


@pytest.mark.gpu
@pytest.mark.parametrize("case", [*CASES, *REAL_CASES], ids=str)
def test_kernels_on_the_gpu(gpu: torch.device, case: Case) -> None:
    rings = rings_of(case, gpu)
    got = ring_attention.ring_attention_quantised(rings, scale=SCALE)
    assert_attention(case, rings, got)
    again = ring_attention.ring_attention_quantised(rings, scale=SCALE)
    rows = (used(case, part.values.view(torch.uint8)) for part in (got, again))
    assert torch.equal(*rows)
