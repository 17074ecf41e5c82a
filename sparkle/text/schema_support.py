"""Refuses a JSON schema that the grammar compiler would not enforce, or not survive. Knows no compiler.

A path in an error has keywords and positions only, counted from 0: `/properties/2/not`. Names of properties
are what the producer wrote, and say what its answers are about.
"""

from __future__ import annotations

from typing import cast

from sparkle.errors import UnsupportedSchema
from sparkle.text.schema_dialect import check_dialect, dialect_of
from sparkle.text.schema_keywords import check_keywords, check_pattern
from sparkle.text.schema_limits import SchemaLimits, require_at_most, require_size
from sparkle.text.schema_places import Place, as_object, places
from sparkle.text.schema_references import check_references
from sparkle.text.schema_served import served_schema


def check_schema(schema: object, limits: SchemaLimits) -> dict[str, object]:
    """A schema in the compiler's words, as an object, if it enforces all that the schema says.

    Its keys keep their order, which is that of an answer's properties. Everything in it is checked, also
    definitions that nothing refers to. Raises UnsupportedSchema with the path of what cannot be enforced;
    GrammarTooComplex with the limit and the schema's number.
    """
    require_size(schema, limits)
    dialect = dialect_of(schema)
    found = list(places(schema))
    for place in found:
        check_dialect(place.keywords, place.path, dialect)
        check_keywords(place.keywords, place.path, limits)
        for pattern in as_object(place.keywords.get("patternProperties")):
            check_pattern(pattern, limits)
    require_at_most("enum values", sum(map(_enum_values, found)), limits.enum_values)
    check_references(found, limits)
    if schema is False:
        raise UnsupportedSchema("schema: / is false, under which nothing is valid; give an object")
    return served_schema(as_object(schema))


def _enum_values(place: Place) -> int:
    given = place.keywords.get("enum")
    return len(cast(list[object], given)) if isinstance(given, list) else 0
