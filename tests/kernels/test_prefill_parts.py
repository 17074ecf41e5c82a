"""Cells gathered from pages, and two parts of attention joined: the kernels in the interpreter."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sparkle.kernels import prefill_parts
from sparkle.kernels.tolerance_relative import relative_error
from tests.kernels.ahead_of_time import compile_for_h200
from tests.kernels.closeness import assert_same_bits
from tests.kernels.interpreter import Interpreter

GATHERED = "sparkle.kernels.prefill_parts:gathered"
JOINED = "sparkle.kernels.prefill_parts:joined"


@pytest.mark.parametrize("kind", [torch.float8_e4m3fn, torch.bfloat16], ids=str)
@pytest.mark.parametrize("tokens", [0, 1, 3, 5, 6])
def test_cells_are_gathered_in_order(interpreter: Interpreter, kind: torch.dtype, tokens: int) -> None:
    # pages wider than a program's part, and of an odd number of cells
    shape = (4, 3, 3, 1024)
    keys, values = (torch.randn(shape).to(kind) for _ in range(2))
    table = torch.tensor([2, 0, -1], dtype=torch.int32)
    for got, pages in zip(
        interpreter.call(GATHERED, keys, values, table, tokens, torch.bfloat16), (keys, values), strict=True
    ):
        assert got.dtype == torch.bfloat16
        assert_same_bits(got, torch.cat((pages[2].float(), pages[0].float()))[:tokens])


def test_two_parts_join_to_the_whole(interpreter: Interpreter) -> None:
    scores = torch.randn(2, 19, 40, dtype=torch.float64) * 4.0
    values = torch.randn(2, 40, 8, dtype=torch.float64)

    def part(keys: slice) -> tuple[Tensor, Tensor]:
        mine = scores[..., keys]
        return (mine.softmax(-1) @ values[:, keys]).float(), mine.logsumexp(-1).float()

    whole = (scores.softmax(-1) @ values).transpose(0, 1)
    first, (result, log) = part(slice(0, 30)), part(slice(30, 40))
    # the second part's rows stand as cuDNN leaves them: heads of one row together
    rows_first = result.transpose(0, 1).contiguous().transpose(0, 1)
    got = interpreter.call(JOINED, first, (rows_first, log), torch.float32)
    assert relative_error(got, whole) < 1e-6
    assert_same_bits(interpreter.call(JOINED, first, (rows_first, log), torch.bfloat16), got.bfloat16())
    # a part that weighs nothing leaves no trace, however large its values
    far = torch.full_like(log, -1e4)
    alone = interpreter.call(JOINED, first, (first[0] * 100, far), torch.float32)
    assert_same_bits(alone, first[0].transpose(0, 1))


def test_kernels_compile_to_wide_loads() -> None:
    kinds = {"p_key_pages": "*fp8e4nv", "p_value_pages": "*fp8e4nv", "p_table": "*i32", "tokens": "i32"}
    kinds |= dict.fromkeys(("p_keys", "p_values", "p_one", "p_other", "p_out"), "*bf16")
    kinds |= dict.fromkeys(("p_one_log", "p_other_log"), "*fp32")
    strides = frozenset(f"stride_{part}_{axis}" for part in ("one", "other") for axis in ("head", "row"))
    kinds |= dict.fromkeys(("rows", *strides), "i32")
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
