"""A computation over tensors that stay where they are, on a GPU as one graph. Knows no pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class Recorded:
    """`replay` computes, `logits` are of the last replay alone."""

    def __init__(self, compute: Callable[[], Tensor], device: torch.device, *, pool: Any, warm: bool) -> None:
        """On a GPU records `compute`, which must not wait for it; elsewhere each replay calls it.

        `pool`, of torch.cuda.graph_pool_handle, holds the graph's memory; those that share one must not run
        side by side. `warm`: the like of it, of another size, was computed before in this process.
        """
        self._compute = compute
        self._graph: Any = None
        self._logits: Tensor | None = None
        if device.type == "cuda":
            if not warm:
                self._run_aside()
            self._record(pool)

    @property
    def logits(self) -> Tensor:
        """What `compute` gave."""
        assert self._logits is not None, "nothing was replayed"
        return self._logits

    def replay(self) -> None:
        """Compute over what the tensors hold now."""
        if self._graph is not None:
            self._graph.replay()
        else:
            self._logits = self._compute()

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
            self._logits = self._compute()
        self._graph = graph
