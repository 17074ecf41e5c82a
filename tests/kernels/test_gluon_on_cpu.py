"""Gluon's stand-in: it computes, and it sees what a kernel does too early."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sparkle.kernels.jit import Pointer, constexpr, gl, gluon_jit
from tests.kernels.interpreter import Interpreter

MODULE = "tests.kernels.test_gluon_on_cpu"
SIZE = 16


@gluon_jit()
def copy_kernel(p_x: Pointer, p_out: Pointer, WAIT: constexpr, SIZE: constexpr) -> None:
    LAYOUT: constexpr = gl.BlockedLayout([1, 8], [16, 2], [4, 1], [1, 0])
    o_row = gl.arange(0, SIZE, layout=gl.SliceLayout(1, LAYOUT))[:, None]
    o_x = o_row * SIZE + gl.arange(0, SIZE, layout=gl.SliceLayout(0, LAYOUT))[None, :]
    s_x = gl.allocate_shared_memory(gl.float16, [SIZE, SIZE], gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))
    gl.nvidia.hopper.async_copy.async_copy_global_to_shared(s_x, p_x + o_x, mask=o_x >= SIZE)
    gl.nvidia.hopper.async_copy.commit_group()
    if WAIT:
        gl.nvidia.hopper.async_copy.wait_group(0)
    gl.store(p_out + o_x, s_x.load(LAYOUT))
    gl.nvidia.hopper.async_copy.wait_group(0)


@gluon_jit()
def product_kernel(p_x: Pointer, p_out: Pointer, MISTAKE: constexpr, SIZE: constexpr) -> None:
    LAYOUT: constexpr = gl.BlockedLayout([1, 8], [16, 2], [4, 1], [1, 0])
    o_row = gl.arange(0, SIZE, layout=gl.SliceLayout(1, LAYOUT))[:, None]
    o_x = o_row * SIZE + gl.arange(0, SIZE, layout=gl.SliceLayout(0, LAYOUT))[None, :]
    s_x = gl.allocate_shared_memory(gl.float16, [2, SIZE, SIZE], gl.NVMMASharedLayout(128, 16, 2))
    s_x.index(0).store(gl.load(p_x + o_x))
    b_zero = gl.zeros([SIZE, SIZE], gl.float32, layout=LAYOUT)
    s_turned = s_x.index(0).permute([1, 0])
    b_y = gl.nvidia.hopper.warpgroup_mma(s_x.index(0), s_turned, b_zero, use_acc=False, is_async=True)
    if MISTAKE == 1:
        s_x.index(0).store(gl.load(p_x + o_x) * 2.0)
    if MISTAKE == 2:
        gl.store(p_out + o_x, b_y)
    if MISTAKE == 3:
        s_x.index(-1).store(gl.load(p_x + o_x))
    b_y = gl.nvidia.hopper.warpgroup_mma_wait(0, deps=[b_y])
    gl.store(p_out + o_x, b_y)


def copied(x: Tensor, *, wait: bool) -> Tensor:
    """Runs in the interpreter's process: all but the first row of `x`."""
    out = torch.empty_like(x)
    copy_kernel[(1,)](x, out, WAIT=wait, SIZE=SIZE)
    return out


def multiplied(x: Tensor, *, mistake: int) -> Tensor:
    """Runs in the interpreter's process: x · xᵀ."""
    out = torch.empty(SIZE, SIZE)
    product_kernel[(1,)](x, out, MISTAKE=mistake, SIZE=SIZE)
    return out


def test_a_copy_is_there_once_it_was_waited_for(interpreter: Interpreter) -> None:
    x = torch.randn(SIZE, SIZE).half()
    got = interpreter.call(f"{MODULE}:copied", x, wait=True)
    assert torch.equal(got[1:], x[1:])
    assert not got[0].any(), "zeros where the mask is false"
    assert bool(interpreter.call(f"{MODULE}:copied", x, wait=False).isnan().all())


def test_a_product_is_there_once_it_was_waited_for(interpreter: Interpreter) -> None:
    x = torch.randn(SIZE, SIZE).half()
    got = interpreter.call(f"{MODULE}:multiplied", x, mistake=0)
    torch.testing.assert_close(got, x.float() @ x.float().t())


@pytest.mark.parametrize(
    ("mistake", "told"),
    [
        (1, "an operand was overwritten while the product was taken"),
        (2, "Product"),
        (3, "place -1 of 2"),
    ],
    ids=["overwritten", "used too early", "outside"],
)
def test_a_mistake_is_seen(interpreter: Interpreter, mistake: int, told: str) -> None:
    with pytest.raises(RuntimeError, match=told):
        interpreter.call(f"{MODULE}:multiplied", torch.randn(SIZE, SIZE).half(), mistake=mistake)
