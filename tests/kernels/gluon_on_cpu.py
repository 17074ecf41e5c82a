"""Gluon's language for Triton's interpreter, which does not know it: the same sums, without layouts.

What a kernel says about time is held against it: a copy to shared memory is seen once its group has been
waited for, NaN until then; a product is a value once it has been waited for, and its operands must stay as
they are so long. It does not see what one thread cannot: barriers and fences do nothing, which proxy_order
reads off the PTX, and products are summed in float32, of which the tensor core keeps some 14 bits. Bulk
copies and their barriers (weight_ring) are not here: those kernels compute on a GPU alone.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

# triton has no types
from triton import language  # pyright: ignore[reportMissingTypeStubs] it has none
from triton.runtime import interpreter  # pyright: ignore[reportMissingTypeStubs]

Array = npt.NDArray[Any]
tl: Any = language
KINDS = {"fp8e4nv": np.uint8, "bf16": np.uint16, "fp16": np.float16, "fp32": np.float32}


class Shared:
    """Shared memory, or a view of it."""

    def __init__(self, data: Array, kind: Any) -> None:
        self.data = data
        self.dtype = kind
        self.shape = data.shape

    def index(self, place: Any) -> Shared:
        """One of the first dimension."""
        # on a GPU a place outside is other memory; here a negative one would count from the end
        assert 0 <= int(place) < self.shape[0], f"place {int(place)} of {self.shape[0]}"
        return Shared(self.data[int(place)], self.dtype)

    def slice(self, start: int, length: int, dim: int = 0) -> Shared:
        """So many places of one dimension."""
        assert start + length <= self.shape[dim], f"places {start} to {start + length} of {self.shape[dim]}"
        places = (slice(None),) * dim + (slice(start, start + length),)
        return Shared(self.data[places], self.dtype)

    def permute(self, order: list[int]) -> Shared:
        """The same with its dimensions in another order."""
        return Shared(self.data.transpose(order), self.dtype)

    def load(self, layout: object = None) -> Any:
        """A tensor of what is there now."""
        handle = interpreter.TensorHandle(self.data.copy(), self.dtype)
        return tl.core.tensor(handle, tl.core.block_type(self.dtype, list(self.shape)))

    def store(self, value: Any) -> None:
        """Writes a tensor."""
        assert value.dtype == self.dtype
        assert tuple(value.shape) == self.shape, f"{list(value.shape)} to {list(self.shape)}"
        self.data[...] = value.handle.data

    def spoil(self) -> None:
        """Writes NaN, which all ones are in every float."""
        self.data.view(np.uint8)[...] = 0xFF


class Product:
    """A product that has been started."""

    def __init__(self, a: Any, b: Shared, start: Any, use_acc: bool) -> None:
        operands = [x for x in (a, b) if isinstance(x, Shared)]
        self._read = [(x, x.data.copy()) for x in operands]
        left = a.load() if isinstance(a, Shared) else a
        before: Any = start._value if isinstance(start, Product) else start
        self._value: Any = tl.dot(left, b.load(), before) if use_acc else tl.dot(left, b.load())
        self._before = start if isinstance(start, Product) else None

    def wait(self) -> Any:
        """The value; RuntimeError where an operand was overwritten meanwhile."""
        if self._before is not None:
            self._before.wait()
        for operand, then in self._read:
            if operand.data.tobytes() != then.tobytes():  # values that are NaN differ from themselves
                raise RuntimeError("an operand was overwritten while the product was taken")
        return self._value


class Copies:
    """Asynchronous copies to shared memory, in groups."""

    def __init__(self) -> None:
        self._open: list[tuple[Shared, Any]] = []
        self._groups: list[list[tuple[Shared, Any]]] = []

    def async_copy_global_to_shared(self, target: Shared, pointer: Any, mask: Any) -> None:
        """Starts one; zeros where the mask is false."""
        self._open.append((target, tl.load(pointer, mask=mask, other=0.0)))
        target.spoil()

    def commit_group(self) -> None:
        """Ends a group."""
        self._groups.append(self._open)
        self._open = []

    def wait_group(self, pending: int) -> None:
        """Until all groups but the last `pending` have come."""
        while len(self._groups) > int(pending):
            for target, value in self._groups.pop(0):
                target.store(value)


class Gluon:
    """Stands for triton.experimental.gluon.language: what is not here is as in triton.language."""

    def __init__(self) -> None:
        hopper = SimpleNamespace(
            async_copy=Copies(),
            fence_async_shared=lambda: None,
            warpgroup_mma=self._warpgroup_mma,
            warpgroup_mma_wait=self._warpgroup_mma_wait,
        )
        ampere = SimpleNamespace(mma_v2=self._mma)
        self.nvidia = SimpleNamespace(ampere=ampere, hopper=hopper)
        # tensors of the interpreter have no layout
        tl.core.block_type.layout = None

    def __getattr__(self, name: str) -> Any:
        return _no_layout if name.endswith("Layout") else getattr(tl, name)

    def arange(self, start: int, stop: int, layout: object) -> Any:
        """start to stop - 1."""
        return tl.arange(start, stop)

    def full(self, shape: list[int], value: float, dtype: Any, layout: object) -> Any:
        """The same everywhere."""
        return tl.full(shape, value, dtype)

    def zeros(self, shape: list[int], dtype: Any, layout: object) -> Any:
        """Zeros."""
        return tl.zeros(shape, dtype)

    def convert_layout(self, value: Any, layout: object) -> Any:
        """The value as it is."""
        return value

    def thread_barrier(self) -> None:
        """Nothing."""

    def allocate_shared_memory(self, dtype: Any, shape: list[int], layout: object) -> Shared:
        """Shared memory full of NaN."""
        shared = Shared(np.zeros(shape, dtype=KINDS[dtype.name]), dtype)
        shared.spoil()
        return shared

    def _mma(self, a: Any, b: Any, start: Any) -> Any:
        # looked up now: the interpreter puts its own in its place while a kernel runs
        return tl.dot(a, b, start)

    def _warpgroup_mma(
        self, a: Any, b: Shared, start: Any, *, use_acc: bool = True, is_async: bool
    ) -> Product:
        assert is_async
        return Product(a, b, start, use_acc)

    def _warpgroup_mma_wait(self, pending: int, deps: list[Product]) -> Any:
        assert pending == 0
        values = [product.wait() for product in deps]
        return values[0] if len(values) == 1 else values


def _no_layout(*_: object) -> None:
    """What every layout is here."""
