"""From numbers to tensors on the device, without waiting for the device. Knows no pass."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import TypeVar

import torch
from torch import Tensor

_CODES = {torch.int32: "i", torch.int64: "q", torch.float64: "d"}
_ALIGN = 16
"""Numbers of 8 bytes: kernels load faster, and are compiled once, where every tensor begins on 128 bytes."""


def to_device(values: Sequence[int] | Sequence[float], dtype: torch.dtype, device: torch.device) -> Tensor:
    """`values` [len(values)] on `device`.

    A copy from ordinary memory would wait for all that the device has to do. From pinned memory it stands in
    line with the rest; torch keeps the memory until it is done.
    """
    return _host(values, dtype, device).to(device, non_blocking=True)


class Pack:
    """Several tensors of fixed sizes in one: one copy fills them all, in the same memory each time."""

    def __init__(
        self, sizes: Sequence[int], device: torch.device, *, float_sizes: Sequence[int] = ()
    ) -> None:
        """`parts` are int64, those of `float_sizes` stand behind them as `floats`, float64; all unwritten."""
        self._padded = [_aligned(size) for size in sizes]
        self._float_padded = [_aligned(size) for size in float_sizes]
        starts = [0, *accumulate([*self._padded, *self._float_padded])]
        self._whole = torch.empty(starts[-1], dtype=torch.int64, device=device)
        made = [
            self._whole[start : start + size]
            for start, size in zip(starts[:-1], [*sizes, *float_sizes], strict=True)
        ]
        self.parts = made[: len(sizes)]
        self.floats = [part.view(torch.float64) for part in made[len(sizes) :]]

    def fill(self, values: Sequence[Sequence[int]], floats: Sequence[Sequence[float]] = ()) -> None:
        """Write the whole of every part."""
        numbers = array("q", _side_by_side(values, self._padded))
        if floats:
            # eight bytes are eight bytes
            numbers.frombytes(array("d", _side_by_side(floats, self._float_padded)).tobytes())
        self._whole.copy_(_host(numbers, torch.int64, self._whole.device), non_blocking=True)

    def wipe(self) -> None:
        """Zero every part: what was filled in is gone, and `fill` is due before the next use."""
        self._whole.zero_()


def pack(values: Sequence[Sequence[int]], device: torch.device) -> list[Tensor]:
    """Each of `values` as an int64 tensor on `device`, by one copy."""
    made = Pack([len(part) for part in values], device)
    made.fill(values)
    return made.parts


N = TypeVar("N", int, float)


def padded(values: Sequence[N], length: int, filler: N) -> list[N]:
    """`values`, and `filler` up to `length`."""
    whole = list(values)
    whole += [filler] * (length - len(values))
    return whole


def _aligned(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN


def _side_by_side(values: Sequence[Sequence[N]], padded: Sequence[int]) -> list[N | int]:
    numbers: list[N | int] = []
    for part, size in zip(values, padded, strict=True):
        numbers += part
        numbers += [0] * (size - len(part))
    return numbers


def _host(values: Sequence[int] | Sequence[float], dtype: torch.dtype, device: torch.device) -> Tensor:
    if not values:
        return torch.empty(0, dtype=dtype)
    # a tensor made of a list takes four times as long
    numbers = values if isinstance(values, array) else array(_CODES[dtype], values)
    host = torch.frombuffer(numbers, dtype=dtype)
    return host.pin_memory() if device.type == "cuda" else host
