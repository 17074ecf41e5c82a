"""The exact shape of an answer: what a job's `response_format` says. Compiles nothing, knows no tools."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, cast

from pydantic import Discriminator, Field, StringConstraints, Tag

from sparkle.schemas.json_object import JsonObject
from sparkle.schemas.message import Part

MAX_GRAMMAR_CHARS = 262_144
MAX_CHOICES = 10_000
MAX_CHOICE_CHARS = 4_096


class _Shape(Part):
    """What all shapes have."""

    complete: bool = False
    """Where max_tokens comes before the end: close the value with the shortest valid ending, instead of
    breaking off. A shape that has no such ending in reach still breaks off, as `length`."""


class JsonSchemaShape(_Shape):
    """JSON that is valid under a schema, draft 2020-12."""

    type: Literal["json_schema"] = "json_schema"

    json_schema: JsonObject = Field(alias="schema")
    """The schema. References go into itself only. The answer's properties come in its order."""

    strict: bool = True
    """Refuse a schema of which something cannot be enforced. Without it the answer is kept to as much as can
    be, JSON at least, is checked when it is whole, and the result's `valid` says what came of it."""


class JsonObjectShape(_Shape):
    """Any JSON object."""

    type: Literal["json_object"] = "json_object"


class RegexShape(_Shape):
    """Text that a regular expression matches as a whole."""

    type: Literal["regex"] = "regex"

    pattern: Annotated[str, StringConstraints(min_length=1, max_length=MAX_GRAMMAR_CHARS)]
    """Rust's syntax: no look-around, no back-references."""


class GrammarShape(_Shape):
    """Text of a context-free language."""

    type: Literal["grammar"] = "grammar"

    grammar: Annotated[str, StringConstraints(min_length=1, max_length=MAX_GRAMMAR_CHARS)]
    """In Lark's notation, from the rule `start` on."""


class ChoiceShape(_Shape):
    """One of some texts."""

    type: Literal["choice"] = "choice"

    choices: Annotated[
        list[Annotated[str, StringConstraints(min_length=1, max_length=MAX_CHOICE_CHARS)]],
        Field(min_length=1, max_length=MAX_CHOICES),
    ]
    """The texts."""


_SHAPES = (JsonSchemaShape, JsonObjectShape, RegexShape, GrammarShape, ChoiceShape)


def _type_of(value: object) -> str | None:
    given = cast("Mapping[str, object]", value).get("type") if isinstance(value, Mapping) else None
    given = value.type if isinstance(value, _SHAPES) else given
    return given if isinstance(given, str) else None


Shape = Annotated[
    Annotated[JsonSchemaShape, Tag("json_schema")]
    | Annotated[JsonObjectShape, Tag("json_object")]
    | Annotated[RegexShape, Tag("regex")]
    | Annotated[GrammarShape, Tag("grammar")]
    | Annotated[ChoiceShape, Tag("choice")],
    # with a message of our own: the library's repeats what the sender wrote
    Discriminator(
        _type_of,
        custom_error_type="unknown_shape",
        custom_error_message="type must be one of json_schema, json_object, regex, grammar, choice",
    ),
]
"""One of the shapes, by its `type`."""
