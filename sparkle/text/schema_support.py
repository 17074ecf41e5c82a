"""Refuses a JSON schema that the grammar compiler would not enforce, or not survive. Knows no compiler.

A path in an error has keywords and positions only, counted from 0: `/properties/2/not`. Names of properties
are what the producer wrote, and say what its answers are about.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple, cast
from urllib.parse import unquote

from sparkle.errors import UnsupportedSchema
from sparkle.text.schema_dialect import check_dialect, dialect_of
from sparkle.text.schema_keywords import check_keywords, check_pattern
from sparkle.text.schema_limits import SchemaLimits, require_at_most, require_size
from sparkle.text.schema_places import LISTS, MAPS, SINGLE
from sparkle.text.schema_served import served_schema

Pointer = tuple[str, ...]
"""Where a schema stands in the whole, key by key."""


class _Place(NamedTuple):
    """A (sub)schema on the way through the whole."""

    schema: object
    pointer: Pointer
    path: str
    above: Pointer


def check_schema(schema: object, limits: SchemaLimits) -> dict[str, object]:
    """A schema in the compiler's words, as an object, if it enforces all that the schema says.

    Its keys keep their order, which is that of an answer's properties. Everything in it is checked, also
    definitions that nothing refers to. Raises UnsupportedSchema with the path of what cannot be enforced;
    GrammarTooComplex with the limit and the schema's number.
    """
    require_size(schema, limits)
    places = list(_places(schema))
    dialect = dialect_of(schema)
    enum_values = 0
    for place in places:
        keywords = _object(place.schema)
        check_dialect(keywords, place.path, dialect)
        check_keywords(keywords, place.path, limits)
        enum_values += _entries(keywords, "enum")
        for pattern in _object(keywords.get("patternProperties")):
            check_pattern(pattern, limits)
    require_at_most("enum values", enum_values, limits.enum_values)
    _check_references(places, limits)
    if schema is False:
        raise UnsupportedSchema("schema: / is false, under which nothing is valid; give an object")
    return served_schema(_object(schema))


def _places(schema: object) -> Iterator[_Place]:
    """Every (sub)schema, each after the one it stands in."""
    waiting = [_Place(schema, (), "", ())]
    while waiting:
        place = waiting.pop()
        if not _is_schema(place.schema):
            raise UnsupportedSchema(f"schema: {place.path or '/'} is no schema; give an object or a boolean")
        yield place
        waiting.extend(_below(place, _object(place.schema)))


def _below(place: _Place, schema: Mapping[str, object]) -> Iterator[_Place]:
    for keyword in MAPS:
        for position, (name, held) in enumerate(_object(schema.get(keyword)).items()):
            path = f"{place.path}/{keyword}/{position}"
            yield _Place(held, (*place.pointer, keyword, name), path, place.pointer)
    for keyword in (*LISTS, *SINGLE):
        held = schema.get(keyword)
        if isinstance(held, list):
            for position, entry in enumerate(cast(list[object], held)):
                key = str(position)
                path = f"{place.path}/{keyword}/{key}"
                yield _Place(entry, (*place.pointer, keyword, key), path, place.pointer)
        elif keyword in SINGLE and keyword in schema:
            path = f"{place.path}/{keyword}"
            yield _Place(held, (*place.pointer, keyword), path, place.pointer)


def _check_references(places: list[_Place], limits: SchemaLimits) -> None:
    """The compiler follows references by recursion, and its stack ends the process."""
    heights = _heights(places)
    targets: set[Pointer] = set()
    for place in places:
        schema = _object(place.schema)
        if "$id" in schema and place.pointer:
            raise UnsupportedSchema(
                f"schema: {place.path}/$id changes what references mean; keep it at the root"
            )
        if "$ref" in schema:
            target = _target(schema["$ref"])
            if target not in heights:
                raise UnsupportedSchema(
                    f"schema: {place.path}/$ref names no schema in here; refer as in #/$defs/name"
                )
            targets.add(target)
    require_at_most("schemas that $ref names", len(targets), limits.ref_targets)
    deepest = heights[()] + sum(heights[target] for target in targets)
    require_at_most("levels with its references followed", deepest, limits.ref_depth)


def _heights(places: list[_Place]) -> dict[Pointer, int]:
    """How many schemas stand in one another at most, from each one on down."""
    heights = {place.pointer: 1 for place in places}
    for place in reversed(places):
        if place.pointer:
            heights[place.above] = max(heights[place.above], heights[place.pointer] + 1)
    return heights


def _target(reference: object) -> Pointer | None:
    """The place that a reference into the same schema names; None for any other."""
    if reference == "#":
        return ()
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return None
    keys = unquote(reference[2:]).split("/")
    return tuple(key.replace("~1", "/").replace("~0", "~") for key in keys)


def _is_schema(value: object) -> bool:
    return isinstance(value, bool | dict)


def _object(value: object) -> Mapping[str, object]:
    return cast(Mapping[str, object], value) if isinstance(value, Mapping) else {}


def _entries(schema: Mapping[str, object], keyword: str) -> int:
    value = schema.get(keyword)
    return len(cast(list[object], value)) if isinstance(value, list) else 0
