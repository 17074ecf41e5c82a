"""msgpack with types: the one place that calls the untyped library. Knows no message."""

from __future__ import annotations

from collections.abc import Sized
from typing import TypeVar, cast

# what follows is ignored for the one reason that msgpack has no types
import msgpack  # type: ignore[import-untyped]  # pyright: ignore[reportMissingTypeStubs]

from sparkle.errors import InvalidMessage

MAX_VALUES = 2**20
"""Entries of all maps and arrays of one message; of log probabilities 8 MiB have fewer."""

S = TypeVar("S", bound=Sized)


def pack(fields: dict[str, object]) -> bytes:
    """A map as msgpack; text and bytes stay apart."""
    return cast(bytes, msgpack.packb(fields, use_bin_type=True))  # pyright: ignore[reportUnknownMemberType]


def unpack(data: bytes | bytearray | memoryview) -> dict[str, object]:
    """The map in `data`. Raises InvalidMessage when it is anything else, without showing it."""
    count = _Count()
    try:
        fields: object = msgpack.unpackb(  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
            data,
            raw=False,
            strict_map_key=True,
            max_ext_len=0,
            max_array_len=MAX_VALUES,
            max_map_len=MAX_VALUES,
            object_hook=count.add,
            list_hook=count.add,
        )
    # ValueError covers its own subclasses: bad format, bad text, extra bytes, too deep, too long
    except (ValueError, RecursionError, _TooMany):
        raise InvalidMessage(f"message: not msgpack with text keys and at most {MAX_VALUES} values") from None
    if not isinstance(fields, dict):
        raise InvalidMessage("message: not a map")
    return cast("dict[str, object]", fields)


class _TooMany(Exception):
    """The message has more values than any of ours."""


class _Count:
    """Counts values while they are read: one byte in a message can be a hundred in memory."""

    def __init__(self) -> None:
        self._left = MAX_VALUES

    def add(self, container: S) -> S:
        """Count a map or an array with its entries. Raises _TooMany."""
        self._left -= 1 + len(container)
        if self._left < 0:
            raise _TooMany
        return container
