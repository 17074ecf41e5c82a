"""A schema is refused before any compiler sees it, with a path or a limit, and never with what it says."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkle.errors import ConfigError, GrammarError, GrammarTooComplex, InvalidGrammar, UnsupportedSchema
from sparkle.text.pattern_length import unrolled_length
from sparkle.text.schema_formats import OWN_FORMATS
from sparkle.text.schema_keywords import FORMATS, NOT_ENFORCED
from sparkle.text.schema_limits import SchemaLimits
from sparkle.text.schema_support import check_schema

LIMITS = SchemaLimits()
INTEGER = {"type": "integer"}
CANARY = "kanarienvogel"
DRAFT_7 = "http://json-schema.org/draft-07/schema#"
OLDER = "https://json-schema.org/draft/2019-09/schema"


def nested(levels: int) -> object:
    """Arrays in one another."""
    schema: object = INTEGER
    for _ in range(levels):
        schema = {"items": schema}
    return schema


def chain(length: int, levels: int = 0) -> dict[str, object]:
    """References of which each definition holds the next one, `levels` arrays deep."""
    definitions: dict[str, object] = {}
    for number in range(length):
        schema: object = {"$ref": f"#/$defs/{number + 1}"} if number + 1 < length else INTEGER
        for _ in range(levels):
            schema = {"items": schema}
        definitions[str(number)] = schema
    return {"$ref": "#/$defs/0", "$defs": definitions}


def test_what_is_enforced_comes_back_with_its_keys_in_order() -> None:
    schema: dict[str, object] = {
        "$id": "https://example.org/a",
        "properties": {"z": {"enum": ["ä", 2**53]}, "a": {"format": "uuid"}, "not": True},
        "required": ["z"],
        "additionalProperties": False,
        "patternProperties": {"^x": {"$ref": "#/properties/z"}},
        "default": {"not": {}},
        "x-ours": {"contains": 1},
        "const": {"if": 1},
    }
    served = check_schema(schema, LIMITS)
    assert served == schema
    assert list(served) == list(schema)
    assert list(cast(dict[str, object], served["properties"])) == ["z", "a", "not"]


@pytest.mark.parametrize("keyword", sorted(NOT_ENFORCED))
def test_a_keyword_that_is_not_enforced_is_named_with_its_path(keyword: str) -> None:
    inner: dict[str, object] = {keyword: True}
    holders: dict[str, object] = {
        "": inner,
        "/items": {"items": inner},
        "/items/1": {"$schema": OLDER, "items": [True, inner]},
        "/prefixItems/1/additionalItems": {"prefixItems": [True, {"additionalItems": inner}]},
        "/properties/1": {"properties": {CANARY: True, CANARY + "s": inner}},
        "/patternProperties/0/allOf/0": {"patternProperties": {CANARY: {"allOf": [inner]}}},
        "/$defs/0/anyOf/2": {"$defs": {CANARY: {"anyOf": [True, False, inner]}}},
        "/definitions/0/oneOf/0": {"definitions": {CANARY: {"oneOf": [inner]}}},
        "/additionalProperties": {"additionalProperties": inner},
    }
    for path, schema in holders.items():
        with pytest.raises(UnsupportedSchema) as told:
            check_schema(schema, LIMITS)
        assert str(told.value) == f"schema: {path}/{keyword} cannot be enforced; leave it out"


@pytest.mark.parametrize("given", ["iri", "unknown", CANARY, 3, None, ["date"]])
def test_other_formats_are_refused_without_their_name(given: object) -> None:
    with pytest.raises(UnsupportedSchema, match=r"^schema: /items/format cannot be enforced") as told:
        check_schema({"items": {"format": given}}, LIMITS)
    assert CANARY not in str(told.value)
    for known in FORMATS:
        served = check_schema({"format": known}, LIMITS)
        assert ("format" in served) is (known not in OWN_FORMATS)


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ({"const": 2**53 + 1}, "/const"),
        ({"enum": ["a", {"b": [-(2**53) - 1]}]}, "/enum"),
        ({"items": {"maximum": 2**63 - 1}}, "/items/maximum"),
        ({"exclusiveMinimum": -1e300}, "/exclusiveMinimum"),
    ],
)
def test_numbers_that_would_be_rounded_are_refused(schema: object, path: str) -> None:
    with pytest.raises(UnsupportedSchema, match=rf"^schema: {path} has a number beyond ±2\^53"):
        check_schema(schema, LIMITS)


@pytest.mark.parametrize(
    "reference",
    [
        "https://example.org/x",
        "other.json#/a",
        "#anchor",
        "#/$defs/b",
        "#/enum/0",
        "#/x-ours",
        3,
        "#/properties",
    ],
)
def test_a_reference_must_name_a_schema_in_the_schema(reference: object) -> None:
    schema: dict[str, object] = {
        "items": {"$ref": reference},
        "$defs": {"a": {}},
        "enum": [{}],
        "x-ours": {},
        "properties": {"p": {}},
    }
    with pytest.raises(UnsupportedSchema, match=r"^schema: /items/\$ref names no schema in here"):
        check_schema(schema, LIMITS)


@pytest.mark.parametrize("reference", ["#", "#/$defs/a~1b%25~0", "#/items", "#/prefixItems/1"])
def test_a_reference_may_name_any_schema_in_it_also_its_own(reference: str) -> None:
    schema: dict[str, object] = {
        "items": {"items": {"$ref": reference}},
        "$defs": {"a/b%~": {}},
        "prefixItems": [{}, True],
    }
    assert check_schema(schema, LIMITS) == schema


REPEATING: list[dict[str, object]] = [
    {"$ref": "#"},
    {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}},
    {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"anyOf": [True, {"$ref": "#/$defs/a"}]}}},
    {"items": {"allOf": [{"oneOf": [{"$ref": "#/items"}]}]}},
    {"anyOf": [{"$ref": "#/anyOf/1"}, {"$ref": "#/anyOf/0"}]},
]


@pytest.mark.parametrize("schema", REPEATING)
def test_a_reference_that_leads_back_to_itself_says_nothing(schema: dict[str, object]) -> None:
    with pytest.raises(UnsupportedSchema, match=r"^schema: .*/\$ref leads back to itself; put an array"):
        check_schema(schema, LIMITS)


def test_one_that_leads_back_by_way_of_an_array_or_object_does() -> None:
    for inside in (
        {"items": {"$ref": "#"}},
        {"properties": {"a": {"$ref": "#"}}},
        {"prefixItems": [{"$ref": "#"}]},
    ):
        schema: dict[str, object] = {"anyOf": [{"type": "null"}, inside]}
        assert check_schema(schema, LIMITS) == schema
    twice: dict[str, object] = {"allOf": [{"$ref": "#/$defs/a"}] * 2, "$defs": {"a": {}}}
    assert check_schema(twice, LIMITS) == twice


def test_an_inner_id_is_refused() -> None:
    with pytest.raises(UnsupportedSchema, match=r"^schema: /properties/0/\$id changes what references mean"):
        check_schema({"properties": {CANARY: {"$id": "https://example.org"}}}, LIMITS)


@pytest.mark.parametrize(
    "not_json", [float("nan"), float("inf"), b"x", {1: 2}, "\ud83d", {"\ud83d": 1}, (1,), 2**1100]
)
def test_what_json_cannot_hold_is_refused(not_json: object) -> None:
    with pytest.raises(UnsupportedSchema):
        check_schema({"default": not_json}, LIMITS)


@pytest.mark.parametrize(
    "schema", [3, None, [], "x", {"items": 3}, {"properties": {"a": []}}, {"anyOf": ["x"]}]
)
def test_what_is_no_schema_is_refused(schema: object) -> None:
    with pytest.raises(InvalidGrammar, match="is no schema; give an object or a boolean"):
        check_schema(schema, LIMITS)


@pytest.mark.parametrize(
    ("limit", "fits", "over", "told"),
    [
        ("text_bytes", {"title": "ä" * 20}, {"title": "ä" * 21}, "54 bytes of JSON text; at most 52"),
        ("depth", nested(3), nested(4), "5 levels; at most 4"),
        ("values", {"a": [1, 2]}, {"a": [1, 2, 3]}, "6 values; at most 5"),
        ("enum_values", {"items": {"enum": [1]}}, {"enum": [1, 2, 3]}, "3 enum values; at most 2"),
        ("text_letters", {"const": {"a": "b" * 30}}, {"enum": ["b" * 31]}, "31 letters in one text"),
        ("text_letters", {"required": ["b" * 30]}, {"properties": {"b" * 31: {}}}, "31 letters in one name"),
        ("ref_targets", chain(5), chain(6), r"6 schemas that \$ref names; at most 5"),
        ("ref_depth", chain(2, 3), chain(2, 4), "16 levels with its references followed; at most 13"),
        ("multiple_of", {"multipleOf": 2.5}, {"multipleOf": 0.026}, "multipleOf over 25 in its digits"),
        ("pattern_letters", {"pattern": "abcd"}, {"patternProperties": {"abcde": True}}, "5 .* most 4"),
        ("pattern_unrolled", {"pattern": "a{9}"}, {"pattern": "(a{2}b){4}"}, "12 characters .*; at most 9"),
    ],
)  # fmt: skip
def test_each_limit_is_told_with_both_numbers(limit: str, fits: object, over: object, told: str) -> None:
    most = {"text_bytes": 52, "depth": 4, "values": 5, "enum_values": 2, "ref_targets": 5, "ref_depth": 13}
    most |= {"multiple_of": 25, "text_letters": 30, "pattern_letters": 4, "pattern_unrolled": 9}
    limits = replace(LIMITS, **{limit: most[limit]})
    assert check_schema(fits, limits) == fits
    with pytest.raises(GrammarTooComplex, match=told):
        check_schema(over, limits)


@pytest.mark.parametrize(
    "hostile",
    [
        nested(5_000),
        chain(1_000),
        chain(300, 9),
        {"multipleOf": 9_999_991},
        {"multipleOf": 0.99991},
        {"multipleOf": 1e9},
        {"multipleOf": 10_001},
        {"multipleOf": -99_991},
        {"multipleOf": 12345.678},
        {"pattern": "(([a-z]{1,50}){1,50}){1,50}"},
        {"enum": list(range(100_000))},
        {"properties": {f"p{number}": INTEGER for number in range(20_000)}},
    ],
)
def test_what_ends_or_holds_up_the_compiler_is_refused_by_default(hostile: object) -> None:
    with pytest.raises(GrammarTooComplex):
        check_schema(hostile, LIMITS)


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ({"items": {"const": {"a": ["b\x00"]}}}, "/items/const"),
        ({"enum": ["a", "\x7f"]}, "/enum"),
        ({"minProperties": 3, "required": ["a"]}, "/minProperties"),
        ({"$schema": "http://json-schema.org/draft-03/schema#"}, "/$schema"),
        ({"$schema": 3}, "/$schema"),
        ({"items": {"$schema": OLDER}}, "/items/$schema"),
        ({"items": [True]}, "/items"),
        ({"exclusiveMinimum": True}, "/exclusiveMinimum"),
        ({"$schema": DRAFT_7, "items": {"$ref": "#", "maxItems": 3}}, "/items/$ref"),
        ({"$schema": DRAFT_7, "contentEncoding": "base64"}, "/contentEncoding"),
        ({"items": {"pattern": "(?i)a"}}, "/items/pattern"),
        ({"patternProperties": {"^a": True, r"\bb": {}}}, "/patternProperties/1"),
    ],
)
def test_what_the_library_would_get_wrong_is_refused_with_its_path(schema: object, path: str) -> None:
    with pytest.raises(UnsupportedSchema, match=rf"^schema: {re.escape(path)} "):
        check_schema(schema, LIMITS)


@pytest.mark.parametrize(
    "schema",
    [
        {"const": "a\b\t\n\f\r"},
        {"minProperties": 2, "required": ["a"]},
        {"$schema": DRAFT_7, "items": {"$ref": "#", "description": "no sibling that says anything"}},
        {"$schema": OLDER, "items": [True]},
        {"$schema": "http://json-schema.org/draft-04/schema", "exclusiveMinimum": True},
        {"contentEncoding": "base64"},
    ],
)
def test_and_what_stands_beside_it_is_not(schema: dict[str, object]) -> None:
    assert check_schema(schema, LIMITS) == schema


def test_a_limit_below_one_is_a_wrong_setting() -> None:
    with pytest.raises(ConfigError, match="depth is 0 but must be at least 1"):
        SchemaLimits(depth=0)


@pytest.mark.parametrize(
    ("pattern", "length"),
    [
        ("", 0),
        ("abc", 3),
        ("a{3}", 3),
        ("xa{2,5}y", 7),
        ("a{0}", 1),
        ("a{4,}", 4),
        ("[a-z\\]]{1,10000}", 10_000),
        ("(ab{3}|c){2}", 10),
        ("((a{10}){10}){10}", 1_000),
        ("\\p{L}{4}", 4),
        ("\\({3}", 3),
        ("[", 1),
        ("\\", 1),
        ("((a{3}", 3),
        (")a)", 3),
        ("a{2}{3}", 6),
    ],
)
def test_a_pattern_is_as_long_as_written_out(pattern: str, length: int) -> None:
    assert unrolled_length(pattern) == length


def json_values() -> st.SearchStrategy[object]:
    keywords = st.sampled_from(
        ["items", "properties", "anyOf", "$ref", "$defs", "pattern", "enum", "not", "type", CANARY]
    )
    leaves = (
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats()
        | st.text()
        | st.sampled_from(["#", "#/items", CANARY])
    )
    return st.recursive(
        leaves,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keywords, inner, max_size=4),
        max_leaves=20,
    )  # fmt: skip


@given(json_values())
def test_anything_is_either_a_schema_or_a_typed_error_without_content(value: object) -> None:
    told, served = "", None
    try:
        served = check_schema(value, LIMITS)
    except GrammarError as error:
        told = str(error)
    assert CANARY not in told
    assert bool(told) is (served is None)
    if served is not None:
        json.dumps(served)
        assert set(served) == set(cast(dict[str, object], {} if value is True else value))


def patterns() -> st.SearchStrategy[tuple[str, int]]:
    """Regular expressions that end in a single atom, with their lengths."""
    atoms = st.sampled_from(["a", "[a-z]", r"\p{L}", r"\(", "[])]", "(b|c{2})"])
    lengths = {"(b|c{2})": 3}

    def grown(inner: st.SearchStrategy[tuple[str, int]]) -> st.SearchStrategy[tuple[str, int]]:
        repeated = st.tuples(inner, st.integers(1, 4)).map(
            lambda p: (f"({p[0][0]}){{{p[1]}}}", p[0][1] * p[1])
        )
        joined = st.tuples(inner, inner).map(lambda p: (f"({p[0][0]}|{p[1][0]}+)", p[0][1] + p[1][1]))
        return repeated | joined

    return st.recursive(atoms.map(lambda atom: (atom, lengths.get(atom, 1))), grown, max_leaves=8)


@given(patterns())
def test_the_length_of_nested_repeats_is_their_product(made: tuple[str, int]) -> None:
    assert unrolled_length(made[0]) == made[1]
