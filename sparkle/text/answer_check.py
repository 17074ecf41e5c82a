"""Says whether a finished answer is valid under its schema, exactly, and without its grammar. Knows no job.

`jsonschema` as it comes takes 0.07 for no multiple of 0.01 and 9.99999999999999999999 for 10, reads patterns
as Python does, for ever if need be, and fetches what a `$ref` names from wherever that is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from typing import NoReturn, Protocol, cast

import jsonschema.validators
from jsonschema import ValidationError
from referencing import Registry
from referencing.exceptions import Unresolvable

from sparkle.text.exact_numbers import exact, is_multiple, is_whole, number, whole
from sparkle.text.schema_draft import draft_of
from sparkle.text.schema_places import as_object
from sparkle.text.text_check import TextCheck

Schema = Mapping[str, object]


class AnswerCheck:
    """One schema. Any answer may be asked for, one thread at a time.

    Hostile schemas and patterns may take any time here: ask in a process that may be ended.
    """

    def __init__(self, schema: bool | Schema) -> None:
        """Keywords that no grammar enforces hold too. Raises InvalidGrammar where `schema` is none."""
        made = draft_of(schema)
        extend = cast(Callable[..., Callable[..., _Validator]], jsonschema.validators.extend)  # pyright: ignore[reportUnknownMemberType] # half typed
        types = made.TYPE_CHECKER.redefine("integer", _is_whole)
        # an empty registry: the drafts' own schemas are added to it, and nothing is fetched
        nothing: Registry[object] = Registry()
        self._validator = extend(made, _keywords(TextCheck()), type_checker=types)(
            exact(schema), registry=nothing
        )

    def holds(self, text: str) -> bool | None:
        """Whether `text` is JSON and valid; None where that cannot be said: see `holds_value`."""
        try:
            value = json.loads(text, parse_float=number, parse_int=whole, parse_constant=_no_number)
        except ValueError:
            return False
        except RecursionError:
            return None
        return self._holds(value)

    def holds_value(self, value: object) -> bool | None:
        """Whether a value, as `json.loads` gives it, is valid.

        None where that cannot be said: it or its schema is nested too deep, a `$ref` leads nowhere or in a
        circle, or a pattern is none.
        """
        return self._holds(exact(value))

    def _holds(self, value: object) -> bool | None:
        try:
            return self._validator.is_valid(value)
        except (RecursionError, Unresolvable, re.error):
            return None


class _Validator(Protocol):
    """What of jsonschema's validators is used here; its own hints leave it open."""

    def is_valid(self, instance: object) -> bool: ...

    def descend(self, instance: object, schema: object) -> Iterator[ValidationError]: ...


_Keyword = Callable[[_Validator, object, object, Schema], Iterator[ValidationError]]
"""What a keyword says of an instance: the validator, what stands behind it, the instance, the schema."""


def _is_whole(_: object, value: object) -> bool:
    return is_whole(value)


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number in JSON")


def _keywords(texts: TextCheck) -> dict[str, _Keyword]:
    """Those of which jsonschema has another opinion."""

    def pattern(_: _Validator, wanted: object, text: object, __: Schema) -> Iterator[ValidationError]:
        if isinstance(text, str) and not texts.finds(str(wanted), text):
            yield ValidationError("pattern")

    def format_(_: _Validator, name: object, text: object, __: Schema) -> Iterator[ValidationError]:
        if isinstance(text, str) and not texts.in_format(str(name), text):
            yield ValidationError("format")

    def multiple_of(_: _Validator, of: object, value: object, __: Schema) -> Iterator[ValidationError]:
        if isinstance(value, bool) or not isinstance(value, int | Decimal):
            return
        if not is_multiple(value, cast(int | Decimal, of)):
            yield ValidationError("multipleOf")

    def pattern_properties(
        validator: _Validator, patterns: object, value: object, _: Schema
    ) -> Iterator[ValidationError]:
        for wanted, schema in as_object(patterns).items():
            for name, held in as_object(value).items():
                if texts.finds(wanted, name):
                    yield from validator.descend(held, schema)

    def additional_properties(
        validator: _Validator, schema: object, value: object, around: Schema
    ) -> Iterator[ValidationError]:
        named, patterns = as_object(around.get("properties")), as_object(around.get("patternProperties"))
        for name, held in as_object(value).items():
            if name not in named and not any(texts.finds(pattern, name) for pattern in patterns):
                yield from validator.descend(held, schema)

    return {
        "pattern": pattern,
        "format": format_,
        "multipleOf": multiple_of,
        "patternProperties": pattern_properties,
        "additionalProperties": additional_properties,
    }
