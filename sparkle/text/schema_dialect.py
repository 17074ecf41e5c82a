"""Which draft of JSON Schema a schema is written in, and what the compiler reads as another one would.

It reads all drafts alike: siblings of `$ref` always hold, `items` may be a list, a bound may be a boolean.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import cast

from sparkle.errors import UnsupportedSchema


class Dialect(IntEnum):
    """The drafts, in their order."""

    DRAFT_4 = 4
    DRAFT_6 = 6
    DRAFT_7 = 7
    DRAFT_2019_09 = 2019
    DRAFT_2020_12 = 2020


_NAMES = {
    **{f"http://json-schema.org/draft-0{number}/schema": Dialect(number) for number in (4, 6, 7)},
    "https://json-schema.org/draft/2019-09/schema": Dialect.DRAFT_2019_09,
    "https://json-schema.org/draft/2020-12/schema": Dialect.DRAFT_2020_12,
}

_HOLDS = frozenset(
    {
        *("type", "enum", "const", "allOf", "anyOf", "oneOf"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
        *("minLength", "maxLength", "pattern", "format"),
        *("items", "prefixItems", "additionalItems", "minItems", "maxItems"),
        *("properties", "patternProperties", "additionalProperties"),
        *("required", "minProperties", "maxProperties"),
    }
)
"""Keywords that say something of a value, those that are refused anyway left out."""


def dialect_of(schema: object) -> Dialect:
    """That of `$schema`, or the newest; raises UnsupportedSchema for any other."""
    if not isinstance(schema, Mapping) or "$schema" not in schema:
        return Dialect.DRAFT_2020_12
    given = cast(Mapping[str, object], schema)["$schema"]
    dialect = _NAMES.get(given.removesuffix("#")) if isinstance(given, str) else None
    if dialect is None:
        raise UnsupportedSchema("schema: /$schema is none of drafts 4, 6, 7, 2019-09 and 2020-12; use one")
    return dialect


def check_dialect(schema: Mapping[str, object], path: str, dialect: Dialect) -> None:
    """Raises UnsupportedSchema for what means something else in `dialect` than it does to the compiler."""
    if path and "$id" in schema:
        raise UnsupportedSchema(f"schema: {path}/$id changes what references mean; keep it at the root")
    if path and "$schema" in schema:
        raise UnsupportedSchema(f"schema: {path}/$schema may change what is meant; keep it at the root")
    if dialect <= Dialect.DRAFT_7 and "$ref" in schema and _HOLDS & schema.keys():
        raise UnsupportedSchema(
            f"schema: {path}/$ref has siblings, which its draft ignores; join them in an allOf"
        )
    if dialect == Dialect.DRAFT_2020_12 and isinstance(schema.get("items"), list):
        raise UnsupportedSchema(
            f"schema: {path}/items is a list, which was an older draft's; use prefixItems"
        )
    for keyword in ("contentEncoding", "contentMediaType"):
        if dialect == Dialect.DRAFT_7 and keyword in schema:
            raise UnsupportedSchema(
                f"schema: {path}/{keyword} cannot be enforced as its draft has it; leave it out"
            )
    for bound in ("exclusiveMinimum", "exclusiveMaximum"):
        if dialect > Dialect.DRAFT_4 and isinstance(schema.get(bound), bool):
            raise UnsupportedSchema(f"schema: {path}/{bound} is a boolean, as in draft 4; give a number")
