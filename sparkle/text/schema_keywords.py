"""What stands behind one keyword of a JSON schema, checked. Knows no schema as a whole.

llguidance reads numbers as float64, has as many states as a `multipleOf` says or a pattern unrolls to, counts
a name that is written twice as two, and drops a character that it cannot write.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import cast

from sparkle.errors import GrammarTooComplex, UnsupportedSchema
from sparkle.text.pattern_dialect import UNWRITABLE
from sparkle.text.pattern_length import unrolled_length
from sparkle.text.schema_limits import SchemaLimits, require_at_most

LARGEST_WHOLE = 2**53
"""Beyond it float64 rounds: a const would force another number than it says."""

FORMATS = frozenset(
    {
        *("date-time", "time", "date", "duration", "email", "hostname"),
        *("ipv4", "ipv6", "uuid", "uri"),
    }
)
"""Those that are enforced, by llguidance or, where it is wrong on them, by `schema_formats`."""

NOT_ENFORCED = frozenset(
    {
        *("not", "if", "then", "else", "dependencies", "dependentRequired", "dependentSchemas"),
        *("uniqueItems", "contains", "minContains", "maxContains", "propertyNames"),
        *("unevaluatedItems", "unevaluatedProperties"),
        *("$dynamicRef", "$dynamicAnchor", "$recursiveRef", "$recursiveAnchor"),
        "x-guidance",  # llguidance's own: it would switch its enforcing off
    }
)
"""Keywords that llguidance refuses or, the last one, obeys. Those that no draft knows mean nothing."""

NUMBERS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"})


def check_keywords(schema: Mapping[str, object], path: str, limits: SchemaLimits) -> None:
    """Check the keywords of one (sub)schema, `path` being where it stands.

    Raises UnsupportedSchema with the path of what cannot be enforced, GrammarTooComplex over a limit.
    """
    for keyword in sorted(NOT_ENFORCED & schema.keys()):
        raise UnsupportedSchema(f"schema: {path}/{keyword} cannot be enforced; leave it out")
    for keyword in sorted(NUMBERS & schema.keys()):
        _check_number(schema[keyword], f"{path}/{keyword}")
    _check_given(schema, path, limits)
    _check_names(schema, limits)
    _check_count(schema, path)
    _check_format(schema, path)
    _check_multiple(schema.get("multipleOf"), limits)
    if isinstance(pattern := schema.get("pattern"), str):
        check_pattern(pattern, limits)


def check_pattern(pattern: str, limits: SchemaLimits) -> None:
    """Raises GrammarTooComplex where a pattern is over a limit."""
    require_at_most("letters in one pattern", len(pattern), limits.pattern_letters)
    require_at_most(
        "characters in one pattern with its repeats written out",
        unrolled_length(pattern),
        limits.pattern_unrolled,
    )


def _check_given(schema: Mapping[str, object], path: str, limits: SchemaLimits) -> None:
    """The values that `enum` and `const` give, numbers and texts in them at any depth."""
    for keyword in ("enum", "const"):
        waiting = [schema.get(keyword)]
        while waiting:
            value = waiting.pop()
            if isinstance(value, Mapping):
                held = cast(Mapping[str, object], value)
                waiting.extend([*held, *held.values()])
            elif isinstance(value, list):
                waiting.extend(cast(list[object], value))
            else:
                _check_number(value, f"{path}/{keyword}")
                _check_text(value, f"{path}/{keyword}", limits)


def _check_number(value: object, path: str) -> None:
    if isinstance(value, int | float) and abs(value) > LARGEST_WHOLE:
        raise UnsupportedSchema(
            f"schema: {path} has a number beyond ±2^53, which would be rounded; use smaller ones or texts"
        )


def _check_names(schema: Mapping[str, object], limits: SchemaLimits) -> None:
    """Those of properties."""
    for keyword in ("properties", "required"):
        names = schema.get(keyword)
        for name in cast(Iterable[object], names) if isinstance(names, dict | list) else ():
            require_at_most("letters in one name", len(str(name)), limits.text_letters)


def _check_text(value: object, path: str, limits: SchemaLimits) -> None:
    if not isinstance(value, str):
        return
    require_at_most("letters in one text", len(value), limits.text_letters)
    if not UNWRITABLE.isdisjoint(value):
        raise UnsupportedSchema(
            f"schema: {path} has a control character other than \\b, \\t, \\n, \\f and \\r, which answers do"
            " not hold; leave it out"
        )


def _check_count(schema: Mapping[str, object], path: str) -> None:
    """One name beyond those required cannot be one that was there before; a second one could."""
    least, required = schema.get("minProperties"), schema.get("required", [])
    names = len(cast(list[object], required)) if isinstance(required, list) else 0
    if isinstance(least, int | float) and least > names + 1:
        raise UnsupportedSchema(
            f"schema: {path}/minProperties cannot be enforced beyond one more than the required properties;"
            " require them by name"
        )


def _check_format(schema: Mapping[str, object], path: str) -> None:
    given = schema.get("format")
    if "format" in schema and not (isinstance(given, str) and given in FORMATS):
        known = ", ".join(sorted(FORMATS))
        raise UnsupportedSchema(
            f"schema: {path}/format cannot be enforced; leave it out or take one of {known}"
        )


def _check_multiple(given: object, limits: SchemaLimits) -> None:
    """0.25 has 25 states: as many as its digits say without the point, and all zeros before it."""
    if isinstance(given, int | float) and not isinstance(given, bool):
        number = Decimal(repr(given)).normalize()
        digits = int(number.scaleb(_places_of(number)))
        if abs(digits) > limits.multiple_of:
            # not the number itself: a count is told, what a producer wrote is not
            raise GrammarTooComplex(
                f"schema: has a multipleOf over {limits.multiple_of} in its digits; give a smaller one"
            )


def _places_of(number: Decimal) -> int:
    """How many digits stand behind the point."""
    exponent = number.as_tuple().exponent
    return max(0, -exponent) if isinstance(exponent, int) else 0
