"""Overwrites what computing left in memory that no tensor holds, on a GPU and beside it. Knows no pass.

torch keeps memory that became free for the next tensor, and a graph its own for the next replay: until then
both hold what was computed there.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from typing import Any, cast

import torch


def wipe_left_over(pool: Any) -> None:
    """Zero all that no tensor holds, and what the graphs of `pool` computed; waits for the GPU.

    pool: of torch.cuda.graph_pool_handle. A graph reads nothing of its own memory that it has not written in
    the same replay: its results are lost, itself it can be replayed as before.

    Raises RuntimeError where the driver refuses.
    """
    # other streams may still use what they gave back
    torch.cuda.synchronize()
    driver = ctypes.CDLL("libcuda.so.1")
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    for address, size_bytes in left_over(_segments(), pool):
        refused = driver.cuMemsetD8Async(
            ctypes.c_uint64(address), ctypes.c_ubyte(0), ctypes.c_size_t(size_bytes), stream
        )
        if refused:
            raise RuntimeError(
                f"memory of {size_bytes} bytes cannot be overwritten: the driver says {refused}, which its "
                "list of CUresult explains"
            )
    torch.cuda.synchronize()
    # pinned memory goes back to the system, which overwrites it before anybody has it; torch 2.11 has no
    # other name for this
    torch._C._host_emptyCache()  # pyright: ignore[reportPrivateUsage]


def left_over(segments: Sequence[dict[str, Any]], pool: Any) -> Iterator[tuple[int, int]]:
    """Address and size of what is to be overwritten, by torch.cuda.memory_snapshot."""
    for segment in segments:
        if segment["segment_pool_id"] == pool:
            yield segment["address"], segment["total_size"]
            continue
        for block in segment["blocks"]:
            if block["state"] == "inactive":
                yield block["address"], block["size"]


def _segments() -> list[dict[str, Any]]:
    # torch has no types for it
    return cast("list[dict[str, Any]]", torch.cuda.memory_snapshot())  # type: ignore[no-untyped-call]
