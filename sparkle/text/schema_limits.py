"""How large a JSON schema may be, and its JSON text once it is known to be no larger. Knows no keywords."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import cast

from sparkle.errors import ConfigError, GrammarTooComplex, UnsupportedSchema


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaLimits:
    """The most that a schema may have. Checked before a compiler sees it, which costs microseconds."""

    text_bytes: int = 256 * 1024
    """Of the schema as JSON text."""
    depth: int = 100
    """Of arrays and objects in one another; the compiler itself gives up at about 128."""
    values: int = 50_000
    """Objects, arrays, keys, texts, numbers and so on, each counted."""
    enum_values: int = 10_000
    """In all enums together; 5,000 compile in 20 ms, 100,000 do not."""
    text_letters: int = 4_096
    """Of one text in an enum or const, and of one name of a property: what of it must still follow is spelled
    in tokens for each pass of its answer, in a fifth of a millisecond for 1,000 letters."""
    ref_targets: int = 300
    """Different schemas that `$ref` names: no chain of references is longer than that."""
    ref_depth: int = 600
    """The depths of the schema and of what `$ref` names, added up: no path through references is deeper.
    The compiler's recursion overruns a stack of 2 MB at 900, one of 8 MB at 3,000."""
    multiple_of: int = 10_000
    """The digits of a `multipleOf`, read as a whole number: the compiler has as many states as it says."""
    pattern_letters: int = 2_000
    """Of one pattern."""
    pattern_unrolled: int = 20_000
    """Characters of one pattern with its counted repeats written out."""

    def __post_init__(self) -> None:
        for field in fields(self):
            if getattr(self, field.name) < 1:
                raise ConfigError(f"{field.name} is {getattr(self, field.name)} but must be at least 1")


def require_size(schema: object, limits: SchemaLimits) -> None:
    """Raises GrammarTooComplex over a limit, UnsupportedSchema for what JSON cannot hold."""
    _count(schema, limits)
    require_at_most("bytes of JSON text", len(compact(schema).encode()), limits.text_bytes)


def compact(schema: object) -> str:
    """The JSON text of a schema of this size, its keys in their order."""
    return json.dumps(schema, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def require_at_most(what: str, value: int, limit: int) -> None:
    """Raises GrammarTooComplex with both numbers where `value` is over `limit`."""
    if value > limit:
        raise GrammarTooComplex(f"schema: has {value} {what}; at most {limit} are served: make it simpler")


def _count(schema: object, limits: SchemaLimits) -> None:
    """Count values and depth without recursion, which a deep schema would not survive."""
    level, depth, values = [schema], 0, 0
    while level:
        values += len(level)
        require_at_most("values", values, limits.values)
        below: list[object] = []
        for value in level:
            below.extend(_children(value))
        depth += bool(below)
        require_at_most("levels", depth, limits.depth)
        level = below


def _children(value: object) -> Sequence[object]:
    """What an object or array holds, keys included."""
    if isinstance(value, dict):
        held = cast(dict[object, object], value)
        if not all(isinstance(key, str) for key in held):
            raise UnsupportedSchema("schema: has a key that is no text; send JSON")
        return [*held, *held.values()]
    if isinstance(value, list):
        return cast(list[object], value)
    _require_json(value)
    return ()


def _require_json(value: object) -> None:
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise UnsupportedSchema(
                "schema: holds half a surrogate pair; send text that UTF-8 can write"
            ) from None
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise UnsupportedSchema("schema: holds a number that JSON cannot write; send finite ones")
    elif isinstance(value, int):
        # Python writes whole numbers of 4,300 digits at most as text
        if value.bit_length() > 1_024:
            raise UnsupportedSchema("schema: holds a whole number over 1,024 bits; send smaller ones")
    elif value is not None:
        raise UnsupportedSchema("schema: holds a value that is not JSON; send JSON")
