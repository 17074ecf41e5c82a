"""What a schema lets a parameter of a tool call be, where its texts are written as they are, without quotes.

Only plain schemas have such a form: texts by length, pattern, enum and const, beside nulls, booleans and
numbers without bounds. A value of any other schema is written as JSON. Knows no tags and no compiler.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
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


@dataclass(frozen=True, slots=True)
class RawText:
    """A parameter whose texts are written as they are."""

    form: ValueForm
    terminal: str
    """What may be written, as a Lark terminal; not yet that it cannot hold what ends it."""


ANY = "/(?s:.*)/"
ANY_TEXT = RawText(ValueForm(raw=True), ANY)


def raw_text(schema: object, resolve: Resolve) -> RawText | None:
    """The form of a parameter's values with texts as they are; None where they are written as JSON."""
    found = _alternatives(schema, resolve, _MAX_ALTERNATIVES)
    if not found:
        return None
    texts = [_text_terminal(one) for one in found if one["type"] == "string"]
    others = [_scalar(one) for one in found if one["type"] != "string"]
    known_texts = [text for text in texts if text is not None]
    known = [other for other in others if other is not None]
    if not texts or len(known_texts) < len(texts) or len(known) < len(others):
        return None
    scalars = frozenset(kind for kind, _ in known)
    return RawText(ValueForm(raw=True, scalars=scalars), _union(known_texts, known, scalars))


def _union(texts: list[str], others: list[tuple[Scalar, str]], scalars: frozenset[Scalar]) -> str:
    """Texts that read as one of the scalars are left out: they would be read as these."""
    text = " | ".join(texts)
    if not scalars:
        return text
    excluded = " | ".join(_EVERY[scalar] for scalar in sorted(scalars))
    return " | ".join([f"(({text}) & ~({excluded}))", *(terminal for _, terminal in others)])


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
    types = [one["type"] for one in found]
    # of oneOf no two may hold at once
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


def _text_terminal(says: Schema) -> str | None:
    """A text's terminal; None where something is said of it that has no raw form."""
    if "enum" in says or "const" in says:
        if len(says.keys() & _OF_TEXTS) > 1:
            return None
        texts = [value for value in _given(says) if isinstance(value, str)]
        return " | ".join(json.dumps(text) for text in texts) or None
    parts = [_length(says.get("minLength", 0), says.get("maxLength"))]
    patterns = [says["pattern"]] if "pattern" in says else []
    if "format" in says:
        patterns.append(_format_pattern(says["format"]))
    for pattern in patterns:
        whole = whole_text(pattern)
        parts.append(None if whole is None else f"/{whole}/")
    return None if None in parts else " & ".join(part for part in parts if part)


def _format_pattern(name: object) -> str | None:
    """Of texts in a format; None where it has none here. Leap seconds are left out."""
    if name == "uuid":
        return "^[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"
    if name not in OWN_FORMATS:
        return None
    schema = format_schema(name)
    usual = cast(list[dict[str, str]], schema.get("anyOf", [schema]))[0]
    return usual["pattern"]


def _length(least: object, most: object) -> str | None:
    if not isinstance(least, int) or not isinstance(most, int | None):
        return None
    return f"/(?s:.{{{least},{'' if most is None else most}}})/" if least or most is not None else ANY


def _scalar(says: Schema) -> tuple[Scalar, str] | None:
    """Kind and terminal of what is no text; None where it has no plain form."""
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
        terminal = " | ".join(json.dumps(json.dumps(value)) for value in wanted)
        return (kind, terminal) if terminal and type_ != "integer" else None
    return kind, "/-?(0|[1-9][0-9]*)/" if type_ == "integer" else _EVERY[kind]
