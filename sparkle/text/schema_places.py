"""Where in a JSON schema other schemas stand. Knows no keyword's meaning."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple, cast

from sparkle.errors import InvalidGrammar

MAPS = ("properties", "patternProperties", "$defs", "definitions")
"""Keywords with schemas by name."""
LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
SINGLE = ("items", "additionalItems", "additionalProperties")
"""With one each; `items` in old drafts perhaps a list."""

Pointer = tuple[str, ...]
"""Where a schema stands in the whole, key by key."""


class Place(NamedTuple):
    """A (sub)schema on the way through the whole."""

    schema: object
    pointer: Pointer
    path: str
    """As the pointer, by position where that has a name: for errors, which have no names of properties."""
    above: Pointer

    @property
    def keywords(self) -> Mapping[str, object]:
        """Those of the schema; a boolean has none."""
        return as_object(self.schema)


def places(schema: object) -> Iterator[Place]:
    """Every (sub)schema, each after the one it stands in. Raises InvalidGrammar for what is no schema."""
    waiting = [Place(schema, (), "", ())]
    while waiting:
        place = waiting.pop()
        if not isinstance(place.schema, bool | dict):
            raise InvalidGrammar(f"schema: {place.path or '/'} is no schema; give an object or a boolean")
        yield place
        waiting.extend(_below(place))


def as_object(value: object) -> Mapping[str, object]:
    """`value`, or nothing if it is no object."""
    return cast(Mapping[str, object], value) if isinstance(value, Mapping) else {}


def _below(place: Place) -> Iterator[Place]:
    for keyword in MAPS:
        for position, (name, held) in enumerate(as_object(place.keywords.get(keyword)).items()):
            path = f"{place.path}/{keyword}/{position}"
            yield Place(held, (*place.pointer, keyword, name), path, place.pointer)
    for keyword in (*LISTS, *SINGLE):
        held = place.keywords.get(keyword)
        if isinstance(held, list):
            for position, entry in enumerate(cast(list[object], held)):
                key = str(position)
                path = f"{place.path}/{keyword}/{key}"
                yield Place(entry, (*place.pointer, keyword, key), path, place.pointer)
        elif keyword in SINGLE and keyword in place.keywords:
            path = f"{place.path}/{keyword}"
            yield Place(held, (*place.pointer, keyword), path, place.pointer)
