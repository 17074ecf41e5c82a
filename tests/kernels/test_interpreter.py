"""The interpreter's repairs: conversions and products as torch and the GPU do them, failures told."""

from __future__ import annotations

import pytest
import torch

from sparkle.kernels.jit import Pointer, constexpr, jit, tl
from tests.kernels.closeness import assert_same_bits
from tests.kernels.interpreter import Interpreter

MODULE = "tests.kernels.test_interpreter"


@jit()
def convert_kernel(p_x: Pointer, p_out: Pointer, SIZE: constexpr) -> None:
    o = tl.arange(0, SIZE)
    tl.store(p_out + o, tl.load(p_x + o).to(p_out.dtype.element_ty))


@jit()
def multiply_add_kernel(p_x: Pointer, p_out: Pointer, SIZE: constexpr) -> None:
    o = tl.arange(0, SIZE)
    b_x = tl.load(p_x + o)
    tl.store(p_out + o, b_x * b_x + b_x)


@jit()
def dot_kernel(p_a: Pointer, p_b: Pointer, p_out: Pointer, SIZE: constexpr) -> None:
    o = tl.arange(0, SIZE)
    o_2d = o[:, None] * SIZE + o[None, :]
    tl.store(p_out + o_2d, tl.dot(tl.load(p_a + o_2d), tl.load(p_b + o_2d)))


def convert(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    out = torch.empty(x.shape, dtype=dtype)
    convert_kernel[(1,)](x, out, SIZE=x.numel())
    return out


def multiply_add(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty(x.shape, dtype=x.dtype)
    multiply_add_kernel[(1,)](x, out, SIZE=x.numel())
    return out


def dot(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    out = torch.empty(a.shape, dtype=torch.float32)
    dot_kernel[(1,)](a, b, out, SIZE=a.shape[0])
    return out


def fail() -> None:
    raise ValueError("the value and its limit")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn])
def test_conversions_round_to_nearest_even(interpreter: Interpreter, dtype: torch.dtype) -> None:
    x = torch.randn(4096) * 100
    x[:4] = torch.tensor([126.6, -0.0, 1e-4, 440.0])
    assert_same_bits(interpreter.call(f"{MODULE}:convert", x, dtype), x.clamp(-448, 448).to(dtype))


def test_e4m3_saturates(interpreter: Interpreter) -> None:
    got = interpreter.call(f"{MODULE}:convert", torch.tensor([1e6, -1e6]), torch.float8_e4m3fn)
    assert_same_bits(got, torch.tensor([448.0, -448.0]))


def test_bfloat16_arithmetic_rounds_after_each_operation(interpreter: Interpreter) -> None:
    x = torch.randn(1024).to(torch.bfloat16)
    assert_same_bits(interpreter.call(f"{MODULE}:multiply_add", x), x * x + x)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn])
def test_products_are_taken_in_float32(interpreter: Interpreter, dtype: torch.dtype) -> None:
    a, b = torch.randn(2, 32, 32).to(dtype)
    got = interpreter.call(f"{MODULE}:dot", a, b)
    torch.testing.assert_close(got, a.float() @ b.float(), rtol=1e-5, atol=1e-5)


def test_outputs_are_poisoned(interpreter: Interpreter) -> None:
    assert bool(interpreter.call("torch:empty", 3).isnan().all())


def test_a_failure_is_told(interpreter: Interpreter) -> None:
    with pytest.raises(RuntimeError, match="ValueError: the value and its limit"):
        interpreter.call(f"{MODULE}:fail")
