"""A computation over tensors that stay where they are, on a GPU as one graph. Knows no pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch

R = TypeVar("R")


class Recorded(Generic[R]):
    """`replay` computes, `result` is of the last replay alone."""

    def __init__(self, compute: Callable[[], R], device: torch.device, *, pool: Any, warm: bool) -> None:
        """On a GPU records `compute`, which must not wait for it; elsewhere each replay calls it.

        `pool`, of torch.cuda.graph_pool_handle, holds the graph's memory; those that share one must not run
        side by side. `warm`: the like of it, of another size, was computed before in this process.
        """
        self._compute = compute
        self._graph: Any = None
        self._result: R | None = None
        if device.type == "cuda":
            if not warm:
                self._run_aside()
            self._record(pool)

    @property
    def result(self) -> R:
        """What `compute` gave."""
        assert self._result is not None, "nothing was replayed"
        return self._result

    def replay(self) -> None:
        """Compute over what the tensors hold now."""
        if self._graph is not None:
            self._graph.replay()
        else:
            self._result = self._compute()

    def forget(self) -> None:
        """Let go of the last result; what a graph computed is in its pool, to be wiped there."""
        if self._graph is None:
            self._result = None

    def _run_aside(self) -> None:
        # libraries make their handles now, which they cannot while recording
        aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch has no types for its streams
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            self._compute()
        torch.cuda.current_stream().wait_stream(aside)

    def _record(self, pool: Any) -> None:
        graph = torch.cuda.CUDAGraph()
        # kernels that are new to this process are loaded while recording: no stricter mode allows it
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="relaxed"):
            self._result = self._compute()
        self._graph = graph
