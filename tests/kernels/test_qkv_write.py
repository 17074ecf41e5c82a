"""Norm, rotary and cache write in one: the reference against the ops one by one, the kernel against it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from sparkle.kernels import ops, qkv_write
from sparkle.kernels.tolerance_relative import relative_mismatch
from tests.kernels.ahead_of_time import compile_for_h200
from tests.kernels.interpreter import Interpreter

EPS = 1e-6
MODULE = "sparkle.kernels.qkv_write"
E4M3, BF16 = torch.float8_e4m3fn, torch.bfloat16


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What qkv_write is given, but the pages."""

    query: Tensor
    key: Tensor
    value: Tensor
    query_norm: Tensor
    key_norm: Tensor
    table: Tensor
    cells: Tensor

    def arguments(self, keys: Tensor, values: Tensor) -> tuple[Tensor, ...]:
        """In the op's order."""
        rows = (self.query, self.key, self.value, self.query_norm, self.key_norm, self.table)
        return (*rows, keys, values, self.cells)


def inputs_of(
    rows: int, *, heads: int = 4, kv_heads: int = 2, dim: int = 64, pages: int = 4, page_tokens: int = 8
) -> Inputs:
    """Views of one product whose queries and gates alternate by head, keys and values behind them."""
    draw = torch.Generator().manual_seed(rows)
    wide = torch.randn(rows, 2 * (heads + kv_heads) * dim, generator=draw).to(BF16)
    queries, keys, values = wide.split_with_sizes((2 * heads * dim, kv_heads * dim, kv_heads * dim), 1)
    value = values.view(rows, kv_heads, dim)
    if rows:
        value[0, 0, 0] = 1000.0  # more than e4m3 holds
    positions = torch.randint(0, 262_144, (3, rows), generator=draw)
    sections = {64: [3, 3, 2], 256: [11, 11, 10]}[dim]
    table = ops.rotary_table(positions, theta=1e7, rotary_dim=dim // 4, sections=sections)
    cells = torch.randperm(pages * page_tokens, generator=draw)[:rows]
    if rows > 2:
        cells[1] = -1
    return Inputs(
        query=queries.view(rows, heads, 2, dim)[:, :, 0],
        key=keys.view(rows, kv_heads, dim),
        value=value,
        query_norm=torch.randn(dim, generator=draw).to(BF16) * 0.2,
        key_norm=torch.randn(dim, generator=draw).to(BF16) * 0.2,
        table=table,
        cells=cells,
    )


def empty_pages(
    inputs: Inputs, kind: torch.dtype, pages: int = 4, page_tokens: int = 8
) -> tuple[Tensor, Tensor]:
    _, kv_heads, dim = inputs.key.shape
    keys, values = (torch.full((pages, page_tokens, kv_heads, dim), 3.0).to(kind) for _ in range(2))
    return keys, values


def exact_turned(x: Tensor, norm: Tensor, table: Tensor) -> Tensor:
    wide = x.double()
    wide = wide / (wide.square().mean(-1, keepdim=True) + EPS).sqrt() * (1.0 + norm.double())
    lanes = table.shape[-1]
    cos, sin = (part[:, None, :].double() for part in table)
    first, second, rest = wide.split_with_sizes((lanes, lanes, x.shape[-1] - 2 * lanes), -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), -1)


def assert_written(inputs: Inputs, kind: torch.dtype, got: tuple[Tensor, Tensor, Tensor]) -> None:
    """Queries, keys and values against the exact ones; every other cell is as it was."""
    pages, page_tokens = got[1].shape[:2]
    keys, values = empty_pages(inputs, kind, pages, page_tokens)
    known = qkv_write.qkv_write_reference(*inputs.arguments(keys, values), eps=EPS)
    kept = inputs.cells >= 0
    exact_query = exact_turned(inputs.query, inputs.query_norm, inputs.table)
    exact_key = exact_turned(inputs.key, inputs.key_norm, inputs.table)[kept]
    assert (mismatch := relative_mismatch("qkv_write", got[0], known, exact_query)) is None, mismatch
    places = inputs.cells[kept]
    cells = [part.float().flatten(0, 1)[places] for part in (got[1], keys)]
    assert (mismatch := relative_mismatch("qkv_write", cells[0], cells[1], exact_key)) is None, mismatch
    assert torch.equal(got[2].float(), values.float())
    untouched = torch.ones(pages * page_tokens, dtype=torch.bool)
    untouched[places] = False
    assert (got[1].float().flatten(0, 1)[untouched] == 3.0).all()


def run_in_interpreter(*args: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Runs in the interpreter's process: queries and both pages, as they are then."""
    return qkv_write.qkv_write_triton(*args, eps=eps, pdl=False), args[6], args[7]


def test_reference_is_the_ops_one_after_another() -> None:
    # in float32 there is no rounding between them that could differ
    inputs = inputs_of(5)
    wide = replace(inputs, query=inputs.query.float(), key=inputs.key.float(), value=inputs.value.float())
    keys, values = empty_pages(wide, torch.float32)
    query = qkv_write.qkv_write(*wide.arguments(keys, values), eps=EPS)
    norms = ((wide.query, wide.query_norm), (wide.key, wide.key_norm))
    turned = [ops.rotary(ops.rms_norm(x, norm, eps=EPS), wide.table) for x, norm in norms]
    assert torch.equal(query, turned[0])
    kept = wide.cells >= 0
    assert torch.equal(keys.flatten(0, 1)[wide.cells[kept]], turned[1][kept])
    assert torch.equal(values.flatten(0, 1)[wide.cells[kept]], wide.value[kept])


def test_reference_saturates() -> None:
    inputs = inputs_of(3)
    keys, values = empty_pages(inputs, E4M3)
    qkv_write.qkv_write(*inputs.arguments(keys, values), eps=EPS)
    assert float(values.float().flatten(0, 1)[inputs.cells[0], 0, 0]) == 448.0
    assert_written(
        inputs, E4M3, (qkv_write.qkv_write(*inputs.arguments(keys, values), eps=EPS), keys, values)
    )


def test_wrong_inputs_are_refused() -> None:
    inputs = inputs_of(3)
    keys, values = empty_pages(inputs, E4M3)
    wrong = replace(inputs, cells=inputs.cells.int())
    with pytest.raises(ValueError, match=r"cells is torch\.int32"):
        qkv_write.qkv_write(*wrong.arguments(keys, values), eps=EPS)
    wrong = replace(inputs, value=inputs.value[:, :1])
    with pytest.raises(ValueError, match=r"value has shape \[3, 1, 64\]"):
        qkv_write.qkv_write(*wrong.arguments(keys, values), eps=EPS)
    with pytest.raises(ValueError, match=r"key_pages is torch\.float16"):
        qkv_write.qkv_write(*inputs.arguments(keys.half(), values), eps=EPS)


@pytest.mark.parametrize("kind", [E4M3, BF16], ids=str)
@pytest.mark.parametrize(("rows", "heads"), [(0, 3), (1, 3), (5, 3), (5, 0)])
def test_kernel(interpreter: Interpreter, rows: int, heads: int, kind: torch.dtype) -> None:
    inputs = inputs_of(rows, heads=heads, kv_heads=1)
    keys, values = empty_pages(inputs, kind)
    got = interpreter.call(
        "tests.kernels.test_qkv_write:run_in_interpreter", *inputs.arguments(keys, values), eps=EPS
    )
    assert_written(inputs, kind, got)


def test_kernel_of_many_rows(interpreter: Interpreter) -> None:
    inputs = inputs_of(130, heads=1, kv_heads=1, pages=17)
    keys, values = empty_pages(inputs, E4M3, pages=17)
    got = interpreter.call(
        "tests.kernels.test_qkv_write:run_in_interpreter", *inputs.arguments(keys, values), eps=EPS
    )
    assert_written(inputs, E4M3, got)


@pytest.mark.parametrize("rows", [1, 4])
def test_kernel_compiles_without_spills(rows: int) -> None:
    constants = {"HEADS": 24, "KV_HEADS": 4, "DIM": 256, "LANES": 32, "ROWS": rows, "PDL": True}
    types = dict.fromkeys(("p_query", "p_key", "p_value", "p_query_norm", "p_key_norm", "p_out"), "*bf16")
    types |= {"p_table": "*fp32", "p_keys": "*fp8e4nv", "p_values": "*fp8e4nv", "p_cells": "*i64"}
    strides = ("query", "query_head", "key", "key_head", "value", "value_head")
    types |= {"rows": "i32", "eps": "fp32", **{f"stride_{name}": "i32" for name in strides}}
    compiled = compile_for_h200(
        qkv_write.qkv_write_kernel,
        types,
        constants,
        aligned=frozenset(f"stride_{name}" for name in strides),
        warps=rows,
    )
    assert compiled.stack_bytes == 0
    before, _ = compiled.ptx.split("griddepcontrol.wait", 1)
    assert "ld.global" not in before
    assert "cvt.rn.satfinite.e4m3x2.f32" in compiled.ptx


@pytest.mark.gpu
@pytest.mark.parametrize("kind", [E4M3, BF16], ids=str)
@pytest.mark.parametrize(("rows", "heads"), [(0, 24), (1, 24), (16, 24), (129, 24), (4097, 24), (4097, 0)])
def test_kernel_on_the_gpu(gpu: torch.device, rows: int, heads: int, kind: torch.dtype) -> None:
    inputs = inputs_of(rows, heads=heads, kv_heads=4, dim=256, pages=70, page_tokens=64)
    pages = empty_pages(inputs, kind, pages=70, page_tokens=64)
    results: list[tuple[Tensor, Tensor, Tensor]] = []
    for _ in range(2):
        on_gpu = [part.to(gpu) for part in inputs.arguments(*pages)]
        on_gpu[0] = torch.stack((on_gpu[0], on_gpu[0]), dim=2)[:, :, 0]
        query = qkv_write.qkv_write(*on_gpu, eps=EPS)
        results.append((query.cpu(), on_gpu[6].cpu(), on_gpu[7].cpu()))
    assert_written(inputs, kind, results[0])
    for first, second in zip(*results, strict=True):
        assert torch.equal(first.float(), second.float())
