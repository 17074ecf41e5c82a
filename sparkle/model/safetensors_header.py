"""Where each tensor stands in a safetensors file, read from its header alone. Knows no model and no torch.

The file is the header's length in 8 bytes, little endian, the header as JSON, and the bytes of the tensors
one after another without gaps. The library reads the same but tells no place in the file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from sparkle.errors import CheckpointError

ITEM_BYTES: Mapping[str, int] = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 1),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 2),
    **dict.fromkeys(("I32", "U32", "F32"), 4),
    **dict.fromkeys(("I64", "U64", "F64"), 8),
}
"""Size of an item of each dtype, by the name it has in a header."""

LENGTH_BYTES = 8
HEADER_MAX_BYTES = 100_000_000
"""The library's limit: a damaged length must not ask for all memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """A tensor in a file: dense, row by row."""

    file: Path
    dtype: str
    """As in the header: BF16, F32, F8_E4M3 and so on."""

    shape: tuple[int, ...]
    start: int
    """Of its first byte in the file."""

    size_bytes: int


def stored_tensors(file: Path) -> dict[str, StoredTensor]:
    """The tensors of `file` by name.

    Raises CheckpointError naming the file where it cannot be read, is cut off, or its header does not account
    for each of its bytes.
    """
    try:
        size_bytes = file.stat().st_size
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(LENGTH_BYTES), "little")
            if not 0 < length <= min(size_bytes - LENGTH_BYTES, HEADER_MAX_BYTES):
                raise CheckpointError(
                    f"{file.name} is damaged: of its {size_bytes} bytes, {length} would be the header"
                )
            header = stream.read(length)
    except OSError as error:
        raise CheckpointError(f"{file.name} cannot be read: {error.strerror or error}") from error
    try:
        found = _parsed(header, file, first=LENGTH_BYTES + length)
        _require_whole(found, LENGTH_BYTES + length, size_bytes)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{file.name} is damaged: {error}") from error
    return found


def _parsed(header: bytes, file: Path, *, first: int) -> dict[str, StoredTensor]:
    """Raises ValueError where the header's form is wrong."""
    entries: object = json.loads(header, object_pairs_hook=_without_repeats)
    if not isinstance(entries, dict):
        raise ValueError("its header is no JSON object")
    found: dict[str, StoredTensor] = {}
    for name, entry in cast("dict[str, object]", entries).items():
        if name != "__metadata__":
            found[name] = _stored(name, entry, file, first)
    return found


def _without_repeats(pairs: list[tuple[str, object]]) -> dict[str, object]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("its header has a name twice")
    return fields


def _stored(name: str, entry: object, file: Path, first: int) -> StoredTensor:
    match cast("dict[str, object]", entry) if isinstance(entry, dict) else {}:
        case {"dtype": str(dtype), "shape": sizes, "data_offsets": [int(start), int(stop)]}:
            shape = _shape(name, sizes)
        case _:
            raise ValueError(f"its header gives {name} no dtype, shape and data_offsets")
    if dtype not in ITEM_BYTES:
        raise ValueError(f"its header gives {name} the dtype {dtype}")
    if stop - start != math.prod(shape) * ITEM_BYTES[dtype]:
        raise ValueError(f"its header gives {name}, {dtype} {list(shape)}, {stop - start} bytes")
    return StoredTensor(file=file, dtype=dtype, shape=shape, start=first + start, size_bytes=stop - start)


def _shape(name: str, sizes: object) -> tuple[int, ...]:
    given = cast("list[object]", sizes) if isinstance(sizes, list) else [None]
    shape = tuple(size for size in given if type(size) is int and size >= 0)
    if len(shape) != len(given):
        raise ValueError(f"its header gives {name} the shape {sizes}")
    return shape


def _require_whole(found: Mapping[str, StoredTensor], first: int, size_bytes: int) -> None:
    """Raises ValueError unless the tensors fill the file from `first` to its end, without gap or overlap."""
    end = first
    for name, tensor in sorted(found.items(), key=lambda pair: (pair[1].start, pair[1].size_bytes)):
        if tensor.start != end:
            raise ValueError(f"{name} begins at byte {tensor.start} but the tensor before it ends at {end}")
        end += tensor.size_bytes
    if end != size_bytes:
        raise ValueError(f"its tensors end at byte {end} but the file at {size_bytes}")
