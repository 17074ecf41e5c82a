"""Refuses references that the grammar compiler cannot follow: its recursion would end the process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from urllib.parse import unquote

from sparkle.errors import UnsupportedSchema
from sparkle.text.schema_limits import SchemaLimits, require_at_most
from sparkle.text.schema_places import Place, Pointer

_OF_THE_SAME = frozenset({"allOf", "anyOf", "oneOf"})
"""Keywords whose schemas are about the same value as the one they stand in."""


def check_references(places: Sequence[Place], limits: SchemaLimits) -> None:
    """Check every `$ref` among the places of one whole schema.

    Raises UnsupportedSchema with the path of one that leads nowhere, out of the schema or back to itself;
    GrammarTooComplex where there are too many or they lead too deep.
    """
    heights = _heights(places)
    targets = {place.pointer: _found(place, heights) for place in places if "$ref" in place.keywords}
    named = set(targets.values())
    require_at_most("schemas that $ref names", len(named), limits.ref_targets)
    deepest = heights[()] + sum(heights[target] for target in named)
    require_at_most("levels with its references followed", deepest, limits.ref_depth)
    _require_no_circle(places, targets)


def _found(place: Place, known: Mapping[Pointer, int]) -> Pointer:
    target = target_of(place.keywords["$ref"])
    if target is None or target not in known:
        raise UnsupportedSchema(
            f"schema: {place.path}/$ref names no schema in here; refer as in #/$defs/name"
        )
    return target


def _heights(places: Sequence[Place]) -> dict[Pointer, int]:
    """How many schemas stand in one another at most, from each one on down."""
    heights = {place.pointer: 1 for place in places}
    for place in reversed(places):
        if place.pointer:
            heights[place.above] = max(heights[place.above], heights[place.pointer] + 1)
    return heights


def _require_no_circle(places: Sequence[Place], targets: Mapping[Pointer, Pointer]) -> None:
    """No schema says of a value what it says of it: an array or an object must lie between."""
    follows = TopologicalSorter[Pointer]({pointer: {target} for pointer, target in targets.items()})
    for place in places:
        if _OF_THE_SAME.intersection(place.pointer[len(place.above) :][:1]):
            follows.add(place.above, place.pointer)
    try:
        follows.prepare()
    except CycleError as found:
        circle: Sequence[Pointer] = found.args[1]
        path = next(place.path for place in places if place.pointer in targets and place.pointer in circle)
        raise UnsupportedSchema(
            f"schema: {path}/$ref leads back to itself; put an array or an object in between"
        ) from None


def target_of(reference: object) -> Pointer | None:
    """The place that a reference into the same schema names; None for any other."""
    if reference == "#":
        return ()
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return None
    keys = unquote(reference[2:]).split("/")
    return tuple(key.replace("~1", "/").replace("~0", "~") for key in keys)
