"""From a tensor on the device to numbers, without waiting for what was started behind it. Knows no pass."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor


class Told:
    """Reads what was computed up to a mark, while the device goes on with what came after it."""

    def __init__(self, device: torch.device, *, in_graph: bool = False) -> None:
        """`in_graph`: `mark` is called where a graph is recorded, and marks each replay of it."""
        on_gpu = device.type == "cuda"
        # torch has no types for either
        self._aside: Any = torch.cuda.Stream(device) if on_gpu else None  # type: ignore[no-untyped-call]
        self._mark: Any = torch.cuda.Event(external=in_graph) if on_gpu else None  # type: ignore[no-untyped-call]

    def mark(self) -> None:
        """What was started by now is what `read` waits for."""
        if self._mark is not None:
            self._mark.record()

    def read(self, values: Tensor) -> list[int]:
        """The numbers of `values`, int64 [N], which were computed before the mark."""
        if self._aside is None:
            return _list(values)
        self._aside.wait_event(self._mark)
        with torch.cuda.stream(self._aside):
            return _list(values)


def _list(values: Tensor) -> list[int]:
    return cast("list[int]", values.tolist())  # pyright: ignore[reportUnknownMemberType]  # torch types no lists
