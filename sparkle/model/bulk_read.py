"""Carries out a copy plan: threads fill pinned buffers while others are copied to the GPU. Knows no names.

Never more than the buffers is held twice. For a CPU the same is done with ordinary memory.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from itertools import cycle
from threading import Lock

import torch

from sparkle.errors import CheckpointError
from sparkle.model.copy_plan import Part, Read, gather

BUFFER_BYTES = 16 << 20
"""Large enough that a copy runs at the bus's speed, small enough that little of a file waits for its read."""

READERS = 8
"""One thread gets out of the page cache a fraction of what the bus takes."""

BUFFERS = 2
"""Of each reader: one is filled while the other is copied."""


def copy_all(parts: Sequence[Part], device: torch.device) -> int:
    """Read all parts and put them on `device`, and return how many bytes were read.

    Raises CheckpointError naming a file that cannot be read or ends before its parts do.
    """
    reads = gather(parts, buffer_bytes=BUFFER_BYTES)
    if not reads:
        return 0
    if device.type == "cuda":
        # what was launched before may still use the memory that is written here
        torch.cuda.synchronize(device)
    buffer_bytes = max(read.size_bytes for read in reads)
    left, launching = deque(reads), Lock()
    with ThreadPoolExecutor(READERS, "weights") as pool:
        ends = [pool.submit(_read_all, left, buffer_bytes, device, launching) for _ in range(READERS)]
    for end in ends:
        end.result()
    if device.type == "cuda":
        torch.cuda.empty_cache()  # what the streams held in passing
    return sum(read.size_bytes for read in reads)


class _Buffer:
    """Memory for one read; it is free again when the copies out of it have run."""

    def __init__(self, size_bytes: int, device: torch.device) -> None:
        on_gpu = device.type == "cuda"
        self.memory = torch.empty(size_bytes, dtype=torch.uint8, pin_memory=on_gpu)
        # a thread that waits sleeps: the others need the cores
        self._copied = torch.cuda.Event(blocking=True) if on_gpu else None  # type: ignore[no-untyped-call]

    def wait(self) -> None:
        if self._copied is not None:
            self._copied.synchronize()

    def mark(self) -> None:
        """The buffer is free once what is on the current stream has run."""
        if self._copied is not None:
            self._copied.record()


def _read_all(left: deque[Read], buffer_bytes: int, device: torch.device, launching: Lock) -> None:
    """One thread's work: the next read until none is left. A failure leaves nothing for the others to do."""
    try:
        buffers = cycle([_Buffer(buffer_bytes, device) for _ in range(BUFFERS)])
        # also tensors that were made in inference mode may be written
        with torch.inference_mode(), _own_stream(device):
            while (read := _next(left)) is not None:
                buffer = next(buffers)
                buffer.wait()
                _fill(buffer, read)
                # a kernel's first launch compiles it, which one thread must do for all
                with launching:
                    for part in read.parts:
                        start = part.start - read.start
                        part.put(buffer.memory[start : start + part.size_bytes])
                buffer.mark()
            if device.type == "cuda":
                torch.cuda.current_stream(device).synchronize()
    except BaseException:
        left.clear()
        raise


def _next(left: deque[Read]) -> Read | None:
    try:
        return left.popleft()
    except IndexError:
        return None


def _own_stream(device: torch.device) -> AbstractContextManager[object]:
    if device.type != "cuda":
        return nullcontext()
    return torch.cuda.stream(torch.cuda.Stream(device))  # type: ignore[no-untyped-call]


def _fill(buffer: _Buffer, read: Read) -> None:
    memory = buffer.memory.numpy().data[: read.size_bytes]
    try:
        with read.file.open("rb", buffering=0) as stream:
            done = 0
            while done < read.size_bytes:
                count = os.preadv(stream.fileno(), [memory[done:]], read.start + done)
                if count == 0:
                    raise CheckpointError(f"{read.file.name} became shorter while it was read")
                done += count
    except OSError as error:
        raise CheckpointError(f"{read.file.name} cannot be read: {error.strerror or error}") from error
