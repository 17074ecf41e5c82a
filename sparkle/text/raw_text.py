"""What a schema lets a parameter of a tool call be, where its texts are written as they are, without quotes.

Only plain schemas have such a form: texts by length, pattern, enum and const, beside nulls, booleans and
numbers without bounds. A value of any other schema is written as JSON. Knows no tags and no compiler.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from sparkle.text.call_values import NUMBER, Scalar, ValueForm
from sparkle.text.schema_formats import OWN_FORMATS, format_schema
from sparkle.text.whole_text import whole_text

_SAYS_NOTHING = frozenset(
    {
        *("title", "description", "default", "examples", "example", "deprecated", "readOnly", "writeOnly"),
        *("$comment", "$defs", "definitions"),
    }
)
_COMBINES = frozenset({"$ref", "anyOf", "oneOf", "allOf"})
_BOUNDS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"})
_OF_TEXTS = frozenset({"enum", "const", "pattern", "minLength", "maxLength", "format"})
_MAX_ALTERNATIVES = 64

Schema = Mapping[str, object]
Resolve = Callable[[object], object]
"""The schema that a reference names; None where it names none."""


ONE_LINE_LETTERS = 256
"""Up to this `maxLength` a text is written on one line, above it as JSON: where line breaks may come, each
letter is another state of the grammar, and each mask costs 3 ms with the real vocabulary instead of 0.1."""


@dataclass(frozen=True, slots=True)
class RawText:
    """A parameter whose texts are written as they are."""

    form: ValueForm
    terminal: str
    """What may be written, as a Lark terminal; not yet that it cannot hold what ends it."""

    one_line: bool = False
    """Whether nothing that may be written has a line break."""


ANY_TEXT = RawText(ValueForm(raw=True), "/(?s:.*)/")


@dataclass(frozen=True, slots=True)
class _Alternative:
    """One of the kinds that a value may be of."""

    terminal: str
    one_line: bool = True

    scalar: Scalar | None = None
    """None for texts."""

    whole_kind: bool = True
    """Of a scalar: whether every value that reads as one of its kind may be written."""


def raw_text(schema: object, resolve: Resolve) -> RawText | None:
    """The form of a parameter's values with texts as they are; None where they are written as JSON."""
    found = [
        _text(one) if one["type"] == "string" else _scalar(one)
        for one in _alternatives(schema, resolve, _MAX_ALTERNATIVES)
    ]
    known = [one for one in found if one is not None]
    texts = [one for one in known if one.scalar is None]
    if not texts or len(known) < len(found):
        return None
    scalars = frozenset(one.scalar for one in known if one.scalar is not None)
    form = ValueForm(raw=True, scalars=scalars)
    return RawText(form, _union(known), one_line=all(one.one_line for one in texts))


def _union(found: Sequence[_Alternative]) -> str:
    """Texts that read as a scalar that must not be written are left out."""
    texts = " | ".join(one.terminal for one in found if one.scalar is None)
    whole = {one.scalar for one in found if one.whole_kind}
    excluded = sorted({one.scalar for one in found if one.scalar is not None} - whole)
    if excluded:
        texts = f"({texts}) & ~({' | '.join(_EVERY[scalar] for scalar in excluded)})"
    return " | ".join([f"({texts})", *(one.terminal for one in found if one.scalar is not None)])


_EVERY = {Scalar.NULL: '"null"', Scalar.BOOLEAN: "/true|false/", Scalar.NUMBER: f"/{NUMBER}/"}


def _alternatives(schema: object, resolve: Resolve, left: int) -> list[dict[str, object]]:
    """Schemas of one type each, any of which a value may fulfil; empty where it is not as plain as that."""
    if not isinstance(schema, Mapping) or left <= 0:
        return []
    says = {key: value for key, value in cast(Schema, schema).items() if key not in _SAYS_NOTHING}
    combining = _COMBINES & says.keys()
    if combining:
        if len(says) > 1:
            return []
        (keyword,) = combining
        return _combined(keyword, says[keyword], resolve, left)
    return _typed(says)


def _combined(keyword: str, held: object, resolve: Resolve, left: int) -> list[dict[str, object]]:
    if keyword == "$ref":
        return _alternatives(resolve(held), resolve, left - 1)
    members = cast(list[object], held) if isinstance(held, list) else []
    if keyword == "allOf" and len(members) > 1:
        return []
    found: list[dict[str, object]] = []
    for member in members:
        below = _alternatives(member, resolve, left - 1 - len(found))
        if not below:
            return []
        found += below
    # of oneOf no two may hold at once, and every integer is a number
    types = ["number" if one["type"] == "integer" else one["type"] for one in found]
    if keyword == "oneOf" and len(set(types)) < len(types):
        return []
    return found if len(found) <= _MAX_ALTERNATIVES else []


def _typed(says: dict[str, object]) -> list[dict[str, object]]:
    types = says.get("type")
    if types is None:
        given = _given(says)
        types = sorted({_type_of(value) for value in given}) if given else []
    if isinstance(types, str):
        types = [types]
    if not isinstance(types, list):
        return []
    return [{**says, "type": one} for one in cast(list[object], types)]


def _given(says: Schema) -> list[object]:
    """The values that enum or const give; empty without either."""
    values = says.get("enum")
    listed = cast(list[object], values) if isinstance(values, list) else []
    return [says["const"]] if "const" in says else listed


def _type_of(value: object) -> str:
    if isinstance(value, str):
        return "string"
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    return "number" if isinstance(value, int | float) else "object"


def _text(says: Schema) -> _Alternative | None:
    """Texts; None where something is said of them that has no raw form."""
    if "enum" in says or "const" in says:
        texts = [value for value in _given(says) if isinstance(value, str)]
        if len(says.keys() & _OF_TEXTS) > 1 or not texts:
            return None
        return _Alternative(
            " | ".join(map(json.dumps, texts)), one_line=not any("\n" in text for text in texts)
        )
    patterns = [says["pattern"]] if "pattern" in says else []
    if "format" in says:
        patterns.append(_format_pattern(says["format"]))
    if not patterns:
        return _of_length(says.get("minLength", 0), says.get("maxLength"))
    whole = [whole_text(pattern) for pattern in patterns]
    if None in whole or says.keys() & {"minLength", "maxLength"}:
        return None
    return _Alternative(" & ".join(f"/{one}/" for one in whole), one_line=False)


def _of_length(least: object, most: object) -> _Alternative | None:
    if not isinstance(least, int) or least > ONE_LINE_LETTERS:
        return None
    if most is None:
        return _Alternative(f"/(?s:.{{{least},}})/" if least else ANY_TEXT.terminal, one_line=False)
    if not isinstance(most, int) or most > ONE_LINE_LETTERS:
        return None
    return _Alternative(f"/[^\\n]{{{least},{most}}}/")


def _format_pattern(name: object) -> str | None:
    """Of texts in a format; None where it has none here. Leap seconds are left out."""
    if name == "uuid":
        return "^[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"
    if name not in OWN_FORMATS:
        return None
    schema = format_schema(name)
    usual = cast(list[dict[str, str]], schema.get("anyOf", [schema]))[0]
    return usual["pattern"]


def _scalar(says: Schema) -> _Alternative | None:
    """What is no text; None where it has no plain form."""
    kinds = {
        "null": Scalar.NULL,
        "boolean": Scalar.BOOLEAN,
        "number": Scalar.NUMBER,
        "integer": Scalar.NUMBER,
    }
    type_ = says["type"]
    if not isinstance(type_, str) or type_ not in kinds or says.keys() & _BOUNDS:
        return None
    kind = kinds[type_]
    if "enum" in says or "const" in says:
        wanted = [value for value in _given(says) if _type_of(value) == kind.value]
        if not wanted or type_ == "integer":
            return None
        terminal = " | ".join(json.dumps(json.dumps(value)) for value in wanted)
        return _Alternative(terminal, scalar=kind, whole_kind=kind is Scalar.NULL)
    if type_ == "integer":
        return _Alternative("/-?(0|[1-9][0-9]*)/", scalar=kind, whole_kind=False)
    return _Alternative(_EVERY[kind], scalar=kind)
