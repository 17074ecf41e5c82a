"""Random schemas, patterns and Lark grammars: many that hold together, many that do not."""

from __future__ import annotations

from typing import cast

from hypothesis import strategies as st

EVERYTHING: dict[str, object] = {}
NAMES = st.sampled_from(["a", "b", "ab", "é", "", "$ref", "a/b", 'q"', "\\"])
SMALL = st.integers(-2, 12)
NUMBERS = SMALL | st.floats(-20, 20, width=16) | st.sampled_from([0.1, 0.01, 2.5, 2**53, -(2**53), 1e300])
TEXTS = st.text(st.sampled_from('ab"\\ \n\x00é😀0-'), max_size=4)
TYPES = st.sampled_from(["null", "boolean", "integer", "number", "string", "array", "object"])
REFERENCES = st.sampled_from(["#", "#/$defs/a", "#/$defs/b", "#/properties/a", "#/items", "#/anyOf/0"])
FORMATS = st.sampled_from(
    ["date", "time", "date-time", "ipv4", "ipv6", "email", "uri", "uuid", "hostname", "iri"]
)


def patterns() -> st.SearchStrategy[str]:
    """Regular expressions of JavaScript, some of them broken."""
    atoms = st.sampled_from(
        [
            "a",
            "b",
            ".",
            r"\d",
            r"\W",
            r"\s",
            "[ab]",
            '[^"]',
            r"[^\\]",
            "[a-f0-9]",
            r"\p{L}",
            r"\.",
            "é",
            "^",
            "$",
            "(",
        ]
    )

    def grown(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        repeats = st.sampled_from(["*", "+", "?", "{2}", "{0,3}", "{2,}", "*?"])
        return (
            st.tuples(inner, repeats).map(lambda parts: f"(?:{parts[0]}){parts[1]}")
            | st.tuples(inner, inner).map("|".join)
            | st.tuples(inner, inner).map("".join)
        )

    return st.recursive(atoms, grown, max_leaves=6)


def values() -> st.SearchStrategy[object]:
    """JSON values."""
    leaves = st.none() | st.booleans() | NUMBERS | TEXTS
    return st.recursive(
        leaves,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
        max_leaves=5,
    )


def schemas(*, max_leaves: int = 12) -> st.SearchStrategy[object]:
    """Schemas of any keywords that fit their places, with definitions that a reference may name."""
    inside = st.recursive(_leaves(), _grown, max_leaves=max_leaves)
    return st.builds(_with_definitions, inside, inside, inside)


def _leaves() -> st.SearchStrategy[object]:
    forms: list[st.SearchStrategy[object]] = [
        st.booleans(),
        st.just(EVERYTHING),
        st.fixed_dictionaries({"$ref": REFERENCES}),
        st.fixed_dictionaries({"const": values()}),
        st.fixed_dictionaries({"enum": st.lists(values(), min_size=1, max_size=4)}),
        st.fixed_dictionaries({"type": TYPES | st.lists(TYPES, min_size=1, max_size=3, unique=True)}),
        _numbers(),
        _texts(),
    ]
    return st.one_of(forms)


def _numbers() -> st.SearchStrategy[object]:
    names = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
    types = st.sampled_from(["integer", "number"])
    return st.fixed_dictionaries({"type": types}, optional=dict.fromkeys(names, NUMBERS))


def _texts() -> st.SearchStrategy[object]:
    limits = {"minLength": SMALL, "maxLength": SMALL, "pattern": patterns(), "format": FORMATS}
    return st.fixed_dictionaries({"type": st.just("string")}, optional=limits)


def _grown(inner: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    several = st.lists(inner, min_size=1, max_size=3)
    named = st.dictionaries(NAMES, inner, max_size=3)
    objects = {
        "properties": named,
        "required": st.lists(NAMES, max_size=2, unique=True),
        "additionalProperties": inner,
        "patternProperties": st.dictionaries(patterns(), inner, max_size=2),
        "minProperties": SMALL,
        "maxProperties": SMALL,
    }
    arrays = {"items": inner, "prefixItems": several, "minItems": SMALL, "maxItems": SMALL}
    choices = {"anyOf": several, "oneOf": several, "allOf": several}
    return (
        st.fixed_dictionaries({"type": st.just("object")}, optional=objects)
        | st.fixed_dictionaries({"type": st.just("array")}, optional=arrays)
        | st.fixed_dictionaries({}, optional={**choices, "$ref": REFERENCES, "type": TYPES})
        | st.fixed_dictionaries({}, optional={**objects, **arrays, **choices, "not": inner})
    )


def _with_definitions(schema: object, a: object, b: object) -> object:
    if not isinstance(schema, dict):
        return schema
    return {**cast(dict[str, object], schema), "$defs": {"a": a, "b": b}}


def larks() -> st.SearchStrategy[str]:
    """Lark grammars of a few rules, some of them broken or endless."""
    parts = st.sampled_from(
        [
            *(
                '"a"',
                '"\\n"',
                "/[ab]+/",
                "/.*/",
                "/(a{1,40}){1,40}/",
                "rule",
                "start",
                "TERM",
                "none",
                "<[5]>",
            ),
            *("<|im_end|>", '%json {"type":"integer"}', '%json {"$ref":"#"}', '"é"i', "()", "%regex {}"),
        ]
    )
    joined = st.lists(parts, min_size=1, max_size=4).map(" ".join)
    bodies = st.recursive(
        joined,
        lambda inner: st.builds("({}){}".format, inner, st.sampled_from(["*", "+", "?", "{2,5}"])),
        max_leaves=3,
    )
    several = st.lists(bodies, min_size=1, max_size=3).map(" | ".join)
    return st.builds("start: {}\nrule: {}\nTERM: {}\n".format, several, several, parts)
