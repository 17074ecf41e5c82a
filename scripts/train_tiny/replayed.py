"""A step of many small kernels as one CUDA graph. Knows nothing of what the step does."""

from collections.abc import Callable
from typing import Any

import torch


class Replayed:
    """A step without arguments and results, as often as it is called; on a CPU nothing but that step.

    On a GPU the first call runs it as it is, the second captures it, and from then on it is replayed. So its
    shapes must not change, nothing in it may wait for the GPU, and what differs from call to call has to be
    in tensors that stay where they are.
    """

    def __init__(self, step: Callable[[], None], device: torch.device) -> None:
        self._step = step
        # torch has no types for its streams
        on_gpu = device.type == "cuda"
        self._stream: Any = torch.cuda.Stream(device) if on_gpu else None  # type: ignore[no-untyped-call]
        self._graph: torch.cuda.CUDAGraph | None = None
        self._called = False

    def __call__(self) -> None:
        if self._stream is None:
            self._step()
        elif not self._called:
            self._called = True
            # as it is captured: what autograd and the products keep of a stream is then in place
            self._stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._stream):
                self._step()
            torch.cuda.current_stream().wait_stream(self._stream)
        else:
            if self._graph is None:
                self._graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(self._graph, stream=self._stream):
                    self._step()
            self._graph.replay()
