"""Kernels that should lie side by side ask for the same division of a multiprocessor's memory."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from sparkle.kernels import (
    attention_join,
    gdn_inputs,
    gdn_step_kernel,
    gdn_window,
    narrow_linear,
    norm_quant,
    shared_memory,
)
from sparkle.kernels.jit import Pointer, jit, knobs, tl


@jit()
def store_one_kernel(p_out: Pointer) -> None:
    tl.store(p_out, 1.0)


class Driver:
    """Takes what is asked of a function, and answers with `code`."""

    def __init__(self, code: int) -> None:
        self.asked: list[tuple[int | None, int, int]] = []
        self._code = code

    def cuFuncSetAttribute(self, function: ctypes.c_void_p, attribute: int, value: int) -> int:
        self.asked.append((function.value, attribute, value))
        return self._code


@pytest.fixture
def hook() -> Iterator[Any]:
    """The hooks that run when a kernel has been loaded, empty but for what the test adds."""
    chain = knobs.runtime.kernel_load_end_hook
    before, chain.calls = chain.calls, []
    yield chain
    chain.calls = before


def load(monkeypatch: pytest.MonkeyPatch, hook: Any, driver: Driver) -> None:
    def open_library(_: str) -> Driver:
        return driver

    monkeypatch.setattr(ctypes, "CDLL", open_library)
    hook(1, 2**40 + 7, "gdn_step_kernel", {}, "")
    hook(1, 2**40 + 8, "some_kernel", {}, "")


def test_the_names_are_those_of_kernels() -> None:
    gdn = (narrow_linear, gdn_inputs, gdn_window, gdn_step_kernel, norm_quant)
    modules = (*gdn, norm_quant, attention_join)
    assert len(shared_memory.SIDE_BY_SIDE) == len(modules)
    for name, module in zip(shared_memory.SIDE_BY_SIDE, modules, strict=True):
        assert getattr(module, name).fn.__name__ == name


def test_a_kernel_asks_once_for_all(monkeypatch: pytest.MonkeyPatch, hook: Any) -> None:
    shared_memory.divide_memory_alike()
    shared_memory.divide_memory_alike()
    driver = Driver(0)
    load(monkeypatch, hook, driver)
    assert driver.asked == [(2**40 + 7, 9, 100)]


def test_a_refusal_names_the_kernel(monkeypatch: pytest.MonkeyPatch, hook: Any) -> None:
    shared_memory.divide_memory_alike()
    with pytest.raises(
        RuntimeError, match="gdn_step_kernel cannot ask for shared memory: the driver says 1,"
    ):
        load(monkeypatch, hook, Driver(1))


@pytest.mark.gpu
def test_the_driver_knows_on_the_gpu(gpu: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory, "SIDE_BY_SIDE", ("store_one_kernel",))
    out = torch.zeros(1, device=gpu)
    compiled: Any = store_one_kernel[1,](out)
    share = ctypes.c_int()
    driver = ctypes.CDLL("libcuda.so.1")
    assert driver.cuFuncGetAttribute(ctypes.byref(share), 9, ctypes.c_void_p(compiled.function)) == 0
    assert share.value == 100
    assert out.item() == 1.0
