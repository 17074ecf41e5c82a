"""msgpack with types: the one place that calls the untyped library. Knows no message."""

from __future__ import annotations

from typing import Any, cast

# what follows is ignored for the one reason that msgpack has no types
import msgpack  # type: ignore[import-untyped]  # pyright: ignore[reportMissingTypeStubs]

from sparkle.errors import InvalidMessage


def pack(fields: dict[str, Any]) -> bytes:
    """A map as msgpack; text and bytes stay apart."""
    return cast(bytes, msgpack.packb(fields, use_bin_type=True))  # pyright: ignore[reportUnknownMemberType]


def unpack(data: bytes | bytearray | memoryview) -> dict[str, Any]:
    """The map in `data`. Raises InvalidMessage when it is anything else, without showing it."""
    try:
        fields: object = msgpack.unpackb(  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
            data, raw=False, strict_map_key=True, max_ext_len=0
        )
    # ValueError covers its own subclasses: bad format, bad text, extra bytes, too deep
    except (ValueError, RecursionError):
        raise InvalidMessage("message: not msgpack with text keys") from None
    if not isinstance(fields, dict):
        raise InvalidMessage("message: not a map")
    return cast("dict[str, Any]", fields)
