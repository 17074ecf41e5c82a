"""The parameters of a tool, each with what its values may be. Knows no form of a call, and no compiler.

They come in the schema's order, each at most once, and no others: what a schema lets through besides is left
out, and what it asks of its properties together cannot be enforced.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import cast

from sparkle.errors import GrammarError, UnsupportedSchema
from sparkle.schemas.tools import Tool
from sparkle.text.grammar import checked_schema
from sparkle.text.raw_text import ANY_TEXT, RawText, raw_text
from sparkle.text.schema_draft import require_schema
from sparkle.text.schema_limits import SchemaLimits
from sparkle.text.schema_places import as_object
from sparkle.text.schema_references import target_of

_DEFINITIONS = ("$defs", "definitions")
_TOGETHER = frozenset({"$ref", "anyOf", "oneOf", "allOf", "patternProperties", "enum", "const"})
TYPES = frozenset({"string", "number", "integer", "boolean", "null", "array", "object"})


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a tool."""

    name: str
    required: bool

    raw: RawText | None
    """How its values are written where texts are as they are; None where they are JSON."""

    schema: str
    """The JSON schema of its values, as text, of which all is enforced."""


@dataclass(frozen=True, slots=True)
class Parameters:
    """The parameters of one tool."""

    listed: tuple[Parameter, ...]

    exact: bool
    """Whether they say all that the tool's schema says."""


def parameters_of(tool: Tool, limits: SchemaLimits) -> Parameters:
    """What may stand in a call of `tool`; of one that is not strict, what cannot be enforced is let through.

    Raises UnsupportedSchema with the path of what cannot be enforced, GrammarTooComplex over a limit.
    """
    whole = _Whole(tool.parameters or {}, limits)
    try:
        return Parameters(whole.enforced(), exact=True)
    except GrammarError:
        if tool.strict:
            raise
        return looser_parameters_of(tool, limits)


def looser_parameters_of(tool: Tool, limits: SchemaLimits) -> Parameters:
    """The parameters of a tool that is not strict, of each value no more than its type.

    Raises InvalidGrammar where they are no schema, UnsupportedSchema where no call can hold them.
    """
    require_schema(tool.parameters or {}, limits)
    return Parameters(_Whole(tool.parameters or {}, limits).of_type(), exact=False)


class _Whole:
    """A tool's schema."""

    def __init__(self, schema: Mapping[str, object], limits: SchemaLimits) -> None:
        self._whole = schema
        self._limits = limits
        self._root = self._followed(schema)
        if self._root.get("type", "object") != "object":
            raise UnsupportedSchema("schema: /type must be object, for arguments have names")
        self._properties = as_object(self._root.get("properties"))
        self._required = [one for one in _list(self._root.get("required")) if isinstance(one, str)]
        # a required one that is no property comes last
        self._names = list(dict.fromkeys([*self._properties, *self._required]))
        for place, name in enumerate(self._names):
            if set(name) & {"\n", ">"}:
                raise UnsupportedSchema(
                    f"schema: /properties/{place} has > or a line break in its name, which no call can hold"
                )

    def enforced(self) -> tuple[Parameter, ...]:
        """All parameters, of whose schemas all is enforced. Raises UnsupportedSchema, GrammarTooComplex."""
        checked_schema(dict(self._whole), self._limits)
        keyword = self._of_properties_together()
        if keyword is not None:
            raise UnsupportedSchema(f"schema: /{keyword} cannot be enforced in a tool call; leave it out")
        return tuple(self._parameter(place, name) for place, name in enumerate(self._names))

    def of_type(self) -> tuple[Parameter, ...]:
        """All parameters, no more enforced than their types."""
        found: list[Parameter] = []
        for name in self._names:
            type_ = as_object(self._property(name)).get("type")
            said: dict[str, object] = {"type": type_} if type_ in TYPES else {}
            raw = ANY_TEXT if type_ == "string" else None
            text = checked_schema(said, self._limits)
            found.append(Parameter(name, name in self._required, raw, text))
        return tuple(found)

    def _parameter(self, place: int, name: str) -> Parameter:
        held = self._property(name)
        text = checked_schema(self._alone(held, f"/properties/{place}"), self._limits)
        return Parameter(name, name in self._required, raw_text(held, self._resolve), text)

    def _of_properties_together(self) -> str | None:
        """The first keyword that says something of the properties together."""
        least = self._root.get("minProperties", 0)
        most = self._root.get("maxProperties", len(self._names))
        if isinstance(least, int | float) and least > len(self._required):
            return "minProperties"
        if isinstance(most, int | float) and most < len(self._names):
            return "maxProperties"
        return next((key for key in self._root if key in _TOGETHER and self._root[key] != {}), None)

    def _property(self, name: str) -> object:
        return self._properties.get(name, self._root.get("additionalProperties", True))

    def _alone(self, held: object, path: str) -> object:
        """A property's schema as one of its own, with the definitions that it refers to."""
        references = list(_references(held))
        if not references:
            return held
        definitions = {key: self._whole[key] for key in _DEFINITIONS if key in self._whole}
        own = {key: value for key, value in as_object(held).items() if key not in _DEFINITIONS}
        for reference in (*references, *_references(definitions)):
            if not (target := target_of(reference)) or target[0] not in _DEFINITIONS:
                raise UnsupportedSchema(f"schema: {path} has a $ref to elsewhere; refer as in #/$defs/name")
        return {**own, **definitions}

    def _resolve(self, reference: object) -> object:
        """The schema in the whole that a reference names; None where it names none."""
        found: object = self._whole
        for key in target_of(reference) or ("",):
            found = as_object(found).get(key)
        return found

    def _followed(self, schema: Mapping[str, object]) -> Mapping[str, object]:
        """The schema that the root refers to, where it does nothing else."""
        says = schema.keys() - {*_DEFINITIONS, "title", "description", "$schema", "$id", "$comment"}
        return as_object(self._resolve(schema["$ref"])) if says == {"$ref"} else schema


def _references(schema: object) -> Iterator[object]:
    """What stands behind each $ref, at any depth; also in values that only look like a schema."""
    waiting = [schema]
    while waiting:
        value = waiting.pop()
        if isinstance(value, Mapping):
            held = cast(Mapping[str, object], value)
            if "$ref" in held:
                yield held["$ref"]
            waiting.extend(held.values())
        elif isinstance(value, list):
            waiting.extend(cast(list[object], value))


def _list(value: object) -> list[object]:
    return cast(list[object], value) if isinstance(value, list) else []
