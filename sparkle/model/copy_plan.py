"""Which bytes of which files go where: parts of tensors, gathered into reads of one buffer each.

Knows no names and reads nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Bytes that stand together in a file and go to one place."""

    file: Path
    start: int
    """Of the first byte in the file."""

    size_bytes: int
    put: Callable[[Tensor], None]
    """Given the bytes on the host, uint8 [size_bytes], starts their way to their place on the device."""

    @property
    def stop(self) -> int:
        return self.start + self.size_bytes


@dataclass(frozen=True, slots=True)
class Read:
    """Parts that follow one another in a file without a gap, read in one go."""

    parts: Sequence[Part]

    @property
    def file(self) -> Path:
        return self.parts[0].file

    @property
    def start(self) -> int:
        return self.parts[0].start

    @property
    def size_bytes(self) -> int:
        return self.parts[-1].stop - self.start


def gather(parts: Sequence[Part], *, buffer_bytes: int) -> list[Read]:
    """All parts in the order of the files, in reads of at most `buffer_bytes`; a larger part stays alone."""
    ordered = sorted((part for part in parts if part.size_bytes), key=lambda part: (part.file, part.start))
    reads: list[Read] = []
    run: list[Part] = ordered[:1]
    for before, part in pairwise(ordered):
        follows = (part.file, part.start) == (before.file, before.stop)
        if not follows or part.stop - run[0].start > buffer_bytes:
            reads.append(Read(run))
            run = []
        run.append(part)
    return [*reads, Read(run)] if run else reads


def spans(length: int, step: int) -> Iterator[tuple[int, int]]:
    """From 0 to `length` in steps: start and stop of each."""
    for start in range(0, length, step):
        yield start, min(start + step, length)
