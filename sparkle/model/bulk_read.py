"""Carries out a copy plan: threads fill pinned buffers while others are copied to the GPU. Knows no names.

Never more than the buffers is held twice. For a CPU the same is done with ordinary memory.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, nullcontext
from io import FileIO
from itertools import cycle
from pathlib import Path
from threading import Lock

import torch

from sparkle.errors import CheckpointError
from sparkle.model.copy_plan import Part, Read, gather

BUFFER_BYTES = 16 << 20
"""Large enough that a copy runs at the bus's speed, small enough that little of a file waits for its read."""

READERS = 12
"""Copying out of the page cache takes most of the time: with eight it takes longer, with more no less."""

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
    with ExitStack() as stack:
        files = {file: stack.enter_context(_open(file)) for file in {read.file for read in reads}}
        work = Work(reads, files, device)
        pool = stack.enter_context(ThreadPoolExecutor(READERS, "weights"))
        ends = [pool.submit(work.run) for _ in range(min(READERS, len(reads)))]
        for end in ends:
            end.result()
    if device.type == "cuda":
        torch.cuda.empty_cache()  # what the streams held in passing
    return sum(read.size_bytes for read in reads)


class Work:
    """The reads that are left, for several threads."""

    def __init__(self, reads: Sequence[Read], files: Mapping[Path, FileIO], device: torch.device) -> None:
        self._left = deque(reads)
        self._files = files
        self._device = device
        self._buffer_bytes = max(read.size_bytes for read in reads)
        self._launching = Lock()

    def run(self) -> None:
        """One thread's work, until nothing is left. A failure leaves nothing for the others to do."""
        try:
            buffers = cycle([_Buffer(self._buffer_bytes, self._device) for _ in range(BUFFERS)])
            # also tensors that were made in inference mode may be written
            with torch.inference_mode(), _own_stream(self._device):
                while (read := self._next()) is not None:
                    self._carry(read, next(buffers))
                if self._device.type == "cuda":
                    torch.cuda.current_stream(self._device).synchronize()
        except BaseException:
            self._left.clear()
            raise

    def _next(self) -> Read | None:
        try:
            return self._left.popleft()
        except IndexError:
            return None

    def _carry(self, read: Read, buffer: _Buffer) -> None:
        buffer.wait()
        _fill(buffer.view[: read.size_bytes], self._files[read.file], read.start)
        # a kernel's first launch compiles it, which one thread must do for all
        with self._launching:
            for part in read.parts:
                start = part.start - read.start
                part.put(buffer.memory[start : start + part.size_bytes])
        buffer.mark()


class _Buffer:
    """Memory for one read; it is free again when the copies out of it have run."""

    def __init__(self, size_bytes: int, device: torch.device) -> None:
        on_gpu = device.type == "cuda"
        self.memory = torch.empty(size_bytes, dtype=torch.uint8, pin_memory=on_gpu)
        self.view = self.memory.numpy().data
        # a thread that waits sleeps: the others need the cores
        self._copied = torch.cuda.Event(blocking=True) if on_gpu else None  # type: ignore[no-untyped-call]

    def wait(self) -> None:
        if self._copied is not None:
            self._copied.synchronize()

    def mark(self) -> None:
        """The buffer is free once what is on the current stream has run."""
        if self._copied is not None:
            self._copied.record()


def _own_stream(device: torch.device) -> AbstractContextManager[object]:
    if device.type != "cuda":
        return nullcontext()
    return torch.cuda.stream(torch.cuda.Stream(device))  # type: ignore[no-untyped-call]


def _open(file: Path) -> FileIO:
    try:
        return file.open("rb", buffering=0)
    except OSError as error:
        raise CheckpointError(f"{file.name} cannot be read: {error.strerror or error}") from error


def _fill(memory: memoryview, file: FileIO, start: int) -> None:
    name = Path(file.name).name
    done = 0
    while done < len(memory):
        try:
            # at a place of its own: other threads read the same file
            count = os.preadv(file.fileno(), [memory[done:]], start + done)
        except OSError as error:
            raise CheckpointError(f"{name} cannot be read: {error.strerror or error}") from error
        if count == 0:
            raise CheckpointError(f"{name} became shorter while it was read")
        done += count
