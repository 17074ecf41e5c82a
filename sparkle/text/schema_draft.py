"""Says whether a schema is one under its own draft, and which that is. Knows no answer and no compiler."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

from jsonschema import Draft202012Validator, FormatChecker, SchemaError
from jsonschema.protocols import Validator
from jsonschema.validators import validator_for

from sparkle.errors import GrammarTooComplex, InvalidGrammar
from sparkle.text.schema_limits import SchemaLimits, require_size


def draft_of(schema: bool | Mapping[str, object]) -> type[Validator]:
    """The validator of the draft that `schema` names, else of 2020-12.

    Raises InvalidGrammar where it is no schema under that draft, RecursionError where it is nested too deep.
    """
    made = validator_for(schema, default=Draft202012Validator)
    try:
        # without formats: it takes a pattern that Python cannot read for none
        cast(Callable[..., None], made.check_schema)(schema, format_checker=FormatChecker(formats=()))
    except SchemaError:
        raise InvalidGrammar("schema: is not valid under its own draft; correct it") from None
    return made


def require_schema(schema: Mapping[str, object], limits: SchemaLimits) -> None:
    """Raises InvalidGrammar where `schema` is none at all.

    One that is over a limit is not looked at: that could take any time.
    """
    try:
        require_size(schema, limits)
    except GrammarTooComplex:
        return
    draft_of(schema)
