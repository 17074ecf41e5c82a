"""Cells gathered from pages, and parts of attention joined: the kernels in the interpreter."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from sparkle.kernels import prefill_parts
from sparkle.kernels.prefill_parts import Part
from sparkle.kernels.tolerance_relative import relative_error
from tests.kernels.ahead_of_time import compile_for_h200
from tests.kernels.closeness import assert_same_bits
from tests.kernels.interpreter import Interpreter

GATHERED = "sparkle.kernels.prefill_parts:gathered"
JOINED = "sparkle.kernels.prefill_parts:joined"


@pytest.mark.parametrize("kind", [torch.float8_e4m3fn, torch.bfloat16], ids=str)
@pytest.mark.parametrize("tokens", [0, 1, 3, 5, 6])
@pytest.mark.parametrize("spare", [0, 2])
def test_cells_are_gathered_in_order_and_zeros_stand_behind(
    interpreter: Interpreter, kind: torch.dtype, tokens: int, spare: int
) -> None:
    # pages wider than a program's part, and of an odd number of cells
    shape = (4, 3, 3, 1024)
    keys, values = (torch.randn(shape).to(kind) for _ in range(2))
    table = torch.tensor([2, 0, -1], dtype=torch.int32)
    for got, pages in zip(
        interpreter.call(GATHERED, keys, values, table, tokens, torch.bfloat16, room=tokens + spare),
        (keys, values),
        strict=True,
    ):
        assert got.dtype == torch.bfloat16
        assert_same_bits(got[:tokens], torch.cat((pages[2].float(), pages[0].float()))[:tokens])
        assert_same_bits(got[tokens:], torch.zeros(spare, 3, 1024))


def parts_of(*cuts: int) -> tuple[list[Part], Tensor]:
    """Attention over 40 keys, in parts from each of `cuts` on, and over all of them."""
    scores = torch.randn(2, 19, 40, dtype=torch.float64) * 4.0
    values = torch.randn(2, 40, 8, dtype=torch.float64)

    def part(keys: slice) -> Part:
        mine = scores[..., keys]
        return (mine.softmax(-1) @ values[:, keys]).float(), mine.logsumexp(-1).float()

    whole = (scores.softmax(-1) @ values).transpose(0, 1)
    return [part(slice(first, last)) for first, last in pairwise((0, *cuts, 40))], whole


@pytest.mark.parametrize("cuts", [(), (30,), (8, 9), (1, 20, 33)], ids=str)
def test_parts_join_to_the_whole(interpreter: Interpreter, cuts: tuple[int, ...]) -> None:
    parts, whole = parts_of(*cuts)
    got = interpreter.call(JOINED, parts, torch.float32)
    assert relative_error(got, whole) < 1e-6
    # rounded once, whatever was joined in between
    assert_same_bits(interpreter.call(JOINED, parts, torch.bfloat16), got.bfloat16())


def test_parts_of_more_rows_are_joined_where_they_lie(interpreter: Interpreter) -> None:
    (first, (result, log)), _ = parts_of(30)
    wanted = interpreter.call(JOINED, [first, (result, log)], torch.float32)
    # the second part's rows stand as cuDNN leaves them: heads of one row together, other rows around
    wide = torch.full((23, 2, 8), torch.nan)
    wide[3:22] = result.transpose(0, 1)
    wide_log = torch.full((2, 23), torch.nan)
    wide_log[:, 3:22] = log
    other = wide.transpose(0, 1)[:, 3:22], wide_log[:, 3:22]
    assert_same_bits(interpreter.call(JOINED, [first, other], torch.float32), wanted)


def test_a_part_that_weighs_nothing_leaves_no_trace(interpreter: Interpreter) -> None:
    (first, _), _ = parts_of(30)
    far = first[0] * 100, torch.full_like(first[1], -1e4)
    wanted = first[0].transpose(0, 1)
    for parts in ([first, far], [far, first], [far, first, far]):
        assert_same_bits(interpreter.call(JOINED, parts, torch.float32), wanted)


def test_kernels_compile_to_wide_loads() -> None:
    kinds = {"p_key_pages": "*fp8e4nv", "p_value_pages": "*fp8e4nv", "p_table": "*i32", "tokens": "i32"}
    kinds |= dict.fromkeys(("p_keys", "p_values", "p_one", "p_other", "p_out"), "*bf16")
    kinds |= dict.fromkeys(("p_one_log", "p_other_log", "p_log"), "*fp32")
    strides = frozenset(f"stride_{part}_{axis}" for part in ("one", "other") for axis in ("head", "row"))
    kinds |= dict.fromkeys(("rows", "stride_one_log", "stride_other_log", *strides), "i32")
    for kernel, constants in (
        (
            prefill_parts.gather_kernel,
            {"PAGE": 65_536, "WIDTH": 1024, "BLOCK": prefill_parts.GATHER_ELEMENTS},
        ),
        (prefill_parts.join_kernel, {"HEADS": 24, "D": 256, "ROWS": prefill_parts.JOIN_ROWS}),
    ):
        compiled = compile_for_h200(kernel, kinds, constants, aligned=strides, pdl=False)
        assert compiled.stack_bytes == 0
        assert "ld.global.v4.b32" in compiled.ptx
        assert "st.global.v4.b32" in compiled.ptx
