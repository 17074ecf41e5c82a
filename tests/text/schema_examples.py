"""Schemas over every keyword that is enforced, each with values that are valid and values that are not.

`examples/` has them by subject; each that can stand inside another is there a second time, inside one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

EXAMPLES = Path(__file__).parent / "examples"
WHOLE = ('"$ref":', '"$schema":')
"""What of a schema would mean something else inside another one."""


@dataclass(frozen=True)
class Example:
    """A schema; `valid` values are written with their keys in the schema's order."""

    name: str
    schema: bool | Mapping[str, object]
    valid: Sequence[object]
    invalid: Sequence[object]


@cache
def examples() -> tuple[Example, ...]:
    """All of them, in an order that stays."""
    return tuple(_examples())


def _examples() -> Iterator[Example]:
    for path in sorted(EXAMPLES.glob("*.json")):
        for number, made in enumerate(json.loads(path.read_text(encoding="utf-8"))):
            example = Example(f"{path.stem}-{number}", made["schema"], made["valid"], made["invalid"])
            yield example
            if not any(word in json.dumps(example.schema) for word in WHOLE):
                yield PLACES[number % len(PLACES)](example)


def _as_property(inner: Example) -> Example:
    schema = {
        "type": "object",
        "properties": {"before": {"const": 0}, "it": inner.schema},
        "required": ["it"],
    }
    return Example(
        f"{inner.name}-as-property",
        {**schema, "additionalProperties": False},
        [{"it": value} for value in inner.valid] + [{"before": 0, "it": value} for value in inner.valid],
        [{}, {"before": 0}, *({"it": value} for value in inner.invalid)],
    )


def _as_item(inner: Example) -> Example:
    return Example(
        f"{inner.name}-as-item",
        {"type": "array", "items": inner.schema, "minItems": 1, "maxItems": 2},
        [[value] for value in inner.valid] + [[value, inner.valid[0]] for value in inner.valid],
        [[], [inner.valid[0]] * 3, *([inner.valid[0], value] for value in inner.invalid)],
    )


def _or_nothing(inner: Example) -> Example:
    return Example(
        f"{inner.name}-or-nothing",
        {"anyOf": [{"const": ["nothing"]}, inner.schema]},
        [["nothing"], *inner.valid],
        inner.invalid,
    )


def _by_reference(inner: Example) -> Example:
    schema = {
        "type": "array",
        "prefixItems": [{"$ref": "#/$defs/it"}, {"$ref": "#/$defs/it"}],
        "items": False,
    }
    return Example(
        f"{inner.name}-by-reference",
        {**schema, "$defs": {"it": inner.schema}},
        [[], *([value, value] for value in inner.valid)],
        [[inner.valid[0]] * 3, *([value] for value in inner.invalid)],
    )


def _as_other_property(inner: Example) -> Example:
    return Example(
        f"{inner.name}-as-other-property",
        {"type": "object", "properties": {"a": {"const": 1}}, "additionalProperties": inner.schema},
        [{}, {"a": 1}, *({"a": 1, "any name": value} for value in inner.valid)],
        [{"a": 2}, *({"any name": value} for value in inner.invalid)],
    )


PLACES = (_as_property, _as_item, _or_nothing, _by_reference, _as_other_property)
