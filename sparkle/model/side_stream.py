"""Runs something small beside what the current stream computes. Knows no model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import torch

R = TypeVar("R")


class SideStream:
    """On a GPU a second stream, also inside a graph's capture; elsewhere the computation runs at once."""

    def __init__(self, device: torch.device) -> None:
        # torch has no types for its streams
        self._stream = (
            torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            if device.type == "cuda"
            else None
        )

    def start(self, compute: Callable[[], R]) -> Beside[R]:
        """Run `compute`, which sees all that was launched before; its result is had by `wait`."""
        if self._stream is None:
            return Beside(compute, None)
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            return Beside(compute, self._stream)


class Beside(Generic[R]):
    """What is running on the side. What it reads must live until `wait`: this object holds it."""

    def __init__(self, compute: Callable[[], R], stream: torch.cuda.Stream | None) -> None:
        self._compute = compute
        self._result = compute()
        self._stream = stream

    def wait(self) -> R:
        """The result; what is launched from now on comes after it."""
        if self._stream is not None:
            torch.cuda.current_stream().wait_stream(self._stream)
        return self._result
