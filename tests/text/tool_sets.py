"""Over fifty sets of tools, each with calls of them that are right and calls that are not. Knows no grammar.

Arguments are as a producer reads them; `written` turns them into what a model writes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import JsonValue

from sparkle.schemas.tools import Tool

Arguments = dict[str, JsonValue]
Calls = list[tuple[str, Arguments]]


@dataclass(frozen=True)
class ToolSet:
    """Tools, and calls of them."""

    name: str
    tools: list[Tool]
    right: Calls
    wrong: Calls = field(default_factory=list[tuple[str, Arguments]])
    quoted: frozenset[str] = frozenset()
    """Parameters whose texts are written as JSON, for their schema is not plain."""


def tool(name: str, properties: Mapping[str, Any], *required: str, **more: Any) -> Tool:
    schema: dict[str, Any] = {
        "type": "object",
        "properties": dict(properties),
        "required": list(required),
        **more,
    }
    return Tool(name=name, description=f"Does {name}.", parameters=schema)


def one(
    schema: Any, right: Sequence[JsonValue], wrong: Sequence[JsonValue] = (), **more: Any
) -> dict[str, Any]:
    """A set with one tool that has one parameter."""
    return {
        "tools": [tool("do", {"x": schema}, "x", **more)],
        "right": [("do", {"x": value}) for value in right],
        "wrong": [("do", {"x": value}) for value in wrong],
    }


def quoted(
    schema: Any, right: Sequence[JsonValue], wrong: Sequence[JsonValue] = (), **more: Any
) -> dict[str, Any]:
    return {**one(schema, right, wrong, **more), "quoted": frozenset({"x"})}


def written(name: str, arguments: Arguments, quoted: frozenset[str] = frozenset()) -> str:
    """A call as the model writes it, with its outer tags."""
    inside = ""
    for key, value in arguments.items():
        raw = isinstance(value, str) and key not in quoted
        text = value if raw else json.dumps(value, ensure_ascii=False)
        inside += f"<parameter={key}>\n{text}\n</parameter>\n"
    return f"<tool_call>\n<function={name}>\n{inside}</function>\n</tool_call>"


WEATHER = tool(
    "get_weather",
    {"city": {"type": "string"}, "unit": {"enum": ["celsius", "fahrenheit"]}, "days": {"type": "integer"}},
    "city",
)
TREE = {
    "type": "object",
    "properties": {
        "value": {"type": "integer"},
        "below": {"type": "array", "items": {"$ref": "#/$defs/tree"}},
    },
    "required": ["value"],
    "additionalProperties": False,
}
ADDRESS = {
    "type": "object",
    "properties": {"street": {"type": "string"}, "tags": {"type": "array", "items": {"type": "string"}}},
    "required": ["street"],
    "additionalProperties": False,
}

_SETS: dict[str, dict[str, Any]] = {
    "weather": {
        "tools": [WEATHER],
        "right": [
            ("get_weather", {"city": "Paris"}),
            ("get_weather", {"city": "São Paulo", "unit": "celsius", "days": 3}),
            ("get_weather", {"city": "", "days": -1}),
        ],
        "wrong": [
            ("get_weather", {}),
            ("get_weather", {"city": "Paris", "unit": "kelvin"}),
            ("get_weather", {"city": "Paris", "days": 1.5}),
            ("get_weather", {"unit": "celsius", "city": "Paris"}),
            ("get_weather", {"city": "Paris", "extra": "x"}),
            ("get_wether", {"city": "Paris"}),
        ],
    },
    "no arguments": {
        "tools": [Tool(name="stop")],
        "right": [("stop", {})],
        "wrong": [("stop", {"now": "yes"})],
    },
    "empty object": {"tools": [tool("stop", {})], "right": [("stop", {})], "wrong": [("stop", {"x": 1})]},
    "two without arguments": {
        "tools": [Tool(name="start"), Tool(name="stop")],
        "right": [("start", {}), ("stop", {})],
        "wrong": [("pause", {})],
    },
    "all optional": {
        "tools": [
            tool("list", {"a": {"type": "integer"}, "b": {"type": "string"}, "c": {"type": "boolean"}})
        ],
        "right": [
            ("list", {}),
            ("list", {"b": "x"}),
            ("list", {"a": 1, "c": True}),
            ("list", {"a": 1, "b": "", "c": False}),
        ],
        "wrong": [("list", {"c": True, "a": 1}), ("list", {"a": "1x"}), ("list", {"c": None})],
    },
    "names of other scripts": {
        "tools": [tool("größe", {"straße": {"type": "string"}, "天気": {"type": "integer"}}, "straße")],
        "right": [("größe", {"straße": "Ä ö ü ß"}), ("größe", {"straße": "ж", "天気": 7})],
        "wrong": [("grösse", {"straße": "x"}), ("größe", {"天気": 7})],
    },
    "names that begin alike": {
        "tools": [
            tool("get", {"a": {"type": "string"}}, "a"),
            tool("get_all", {"ab": {"type": "string"}}, "ab"),
        ],
        "right": [("get", {"a": "1"}), ("get_all", {"ab": "1"})],
        "wrong": [("get", {"ab": "1"}), ("get_all", {"a": "1"}), ("get_", {"a": "1"})],
    },
    "parameters that begin alike": {
        "tools": [
            tool(
                "do", {"a": {"type": "integer"}, "ab": {"type": "integer"}, "abc": {"type": "integer"}}, "abc"
            )
        ],
        "right": [("do", {"abc": 1}), ("do", {"a": 1, "ab": 2, "abc": 3}), ("do", {"ab": 2, "abc": 3})],
        "wrong": [("do", {"ab": 2}), ("do", {"abcd": 1})],
    },
    "odd names": {
        "tools": [
            tool("server/tool.v2:x-1", {"a b": {"type": "string"}, "<c": {"type": "string"}, '"': {}}, "<c")
        ],
        "right": [
            ("server/tool.v2:x-1", {"a b": "1", "<c": "2", '"': 3}),
            ("server/tool.v2:x-1", {"<c": "<"}),
        ],
        "wrong": [("server/tool.v2:x-1", {"a b": "1"})],
    },
    "many tools": {
        "tools": [tool(f"tool_{n}", {f"p{n}": {"type": "integer"}}, f"p{n}") for n in range(128)],
        "right": [("tool_0", {"p0": 1}), ("tool_12", {"p12": 1}), ("tool_127", {"p127": 1})],
        "wrong": [("tool_128", {"p128": 1}), ("tool_1", {"p12": 1})],
    },
    "many parameters": {
        "tools": [tool("do", {f"p{n}": {"type": "string"} for n in range(60)}, "p7")],
        "right": [("do", {"p7": "x"}), ("do", {f"p{n}": str(n) for n in range(60)})],
        "wrong": [("do", {"p8": "x"}), ("do", {"p7": "x", "p6": "x"})],
    },
    "texts with tags": one(
        {"type": "string"},
        [
            "</tool_call>",
            "<tool_call>\n<function=do>",
            "\n",
            "a\n\n",
            "</parameter>",
            "\n</parameter> ",
            "x\n</parameter",
            '{"a": 1}',
            '"quoted"',
            "null",
            "back\\slash \\n",
        ],
    ),
    "text of a length": one(
        {"type": "string", "minLength": 2, "maxLength": 4},
        ["ab", "äöüß", "😀😀😀"],
        ["", "a", "abcde", "a\nb"],
    ),
    "text of at least": one({"type": "string", "minLength": 3}, ["abc", "a\nb"], ["ab", ""]),
    "long text": quoted({"type": "string", "maxLength": 5_000}, ["", "a\nb", "x" * 300], []),
    "text of at least, and others": one(
        {"type": ["string", "null"], "minLength": 1}, ["a\n", None, "nul"], [""]
    ),
    "one of text or number": one({"oneOf": [{"type": "string"}, {"type": "number"}]}, ["x", 1, 1.5, "1x"]),
    "enum of several lines": one({"enum": ["a\nb", "a", "a\n"]}, ["a\nb", "a", "a\n"], ["b", "a\n\n"]),
    "text of at most": one({"type": "string", "maxLength": 2}, ["", "ab", "<"], ["abc", "\n"]),
    "pattern of the whole": one(
        {"type": "string", "pattern": "^[a-z]+/[0-9]{2}$"}, ["ab/12"], ["AB/12", "ab/1"]
    ),
    "pattern inside": one({"type": "string", "pattern": "b+"}, ["abc", "b", "\nb\n"], ["", "ac"]),
    "pattern at the end": one(
        {"type": "string", "pattern": "\\.txt$"}, ["a.txt", ".txt"], ["a.txt ", "atxt"]
    ),
    "pattern and length": quoted(
        {"type": "string", "pattern": "^[ab]*$", "minLength": 2, "maxLength": 3},
        ["ab", "bbb"],
        ["a", "abab", "ac"],
    ),
    "pattern with alternatives": one(
        {"type": "string", "pattern": "^(?:on|off)$"}, ["on", "off"], ["o", "onoff"]
    ),
    "pattern that is not plain": quoted({"type": "string", "pattern": "^a|b$"}, ["ac", "cb"], ["c"]),
    "enum of texts": one({"enum": ["a", "a b", "", "<x>", "ü"]}, ["a", "a b", "", "<x>", "ü"], ["b", "a "]),
    "enum with its type": one({"type": "string", "enum": ["yes", "no"]}, ["yes", "no"], ["maybe", True]),
    "const text": one({"const": "only this"}, ["only this"], ["only", ""]),
    "enum of numbers": one({"enum": [1, 2.5]}, [1, 2.5], [2, "1x"]),
    "enum of all kinds": one({"enum": ["a", 1, None, True]}, ["a", 1, None, True], ["b", 2, False]),
    "const null": one({"const": None}, [None], [0]),
    "date": one({"type": "string", "format": "date"}, ["2024-02-29"], ["2023-02-29", "today"]),
    "date-time": one(
        {"type": "string", "format": "date-time"},
        ["2024-02-29T10:00:00Z"],
        ["2024-02-29", "2024-02-29T25:00:00Z"],
    ),
    "uuid": one({"type": "string", "format": "uuid"}, ["01234567-89ab-cdef-0123-456789abcdef"], ["0123"]),
    "email": one({"type": "string", "format": "email"}, ["a.b@example.org"], ["a.b", "@"]),
    "hostname": quoted({"type": "string", "format": "hostname"}, ["example.org"], ["-"]),
    "text or null": one(
        {"anyOf": [{"type": "string"}, {"type": "null"}]}, ["x", "", "nul", "nulls", None, "5", "[1]"]
    ),
    "types in a list": one({"type": ["string", "null"]}, ["x", None, "true"]),
    "text, number or boolean": one(
        {"type": ["string", "integer", "boolean"]}, ["x", 5, True, False, "5 ", "yes"], [1.5]
    ),
    "short text or null": one(
        {"anyOf": [{"type": "string", "maxLength": 4}, {"type": "null"}]}, ["abcd", None, ""], ["abcde"]
    ),
    "text or bounded number": quoted(
        {"anyOf": [{"type": "string"}, {"type": "integer", "minimum": 0}]}, ["x", 5, "-5"], [-5]
    ),
    "text or list": quoted(
        {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "integer"}}]},
        ["x", [1, 2]],
        [["a"]],
    ),
    "anything": quoted({}, ["x", 1, None, [1, {"a": "b"}], {"a": []}]),
    "anything, said so": quoted(True, ["x", 1]),
    "integer in bounds": one({"type": "integer", "minimum": 0, "maximum": 10}, [0, 10], [-1, 11]),
    "number": one({"type": "number"}, [0, -1.5, 1e21], ["x"]),
    "boolean": one({"type": "boolean"}, [True, False], [None, 0]),
    "list of texts": one(
        {"type": "array", "items": {"type": "string"}, "minItems": 1},
        [["a", "\n", "</parameter>"]],
        [[], [1], "a"],
    ),
    "nested objects": one(
        {"type": "object", "properties": {"home": ADDRESS, "work": ADDRESS}, "required": ["home"]},
        [{"home": {"street": "x", "tags": ["a", "b"]}}, {"home": {"street": ""}, "work": {"street": "ß"}}],
        [{}, {"home": {}}, {"home": {"street": "x", "number": 1}}],
    ),
    "recursion": one(
        {"$ref": "#/$defs/tree"},
        [{"value": 1}, {"value": 1, "below": [{"value": 2, "below": []}]}],
        [{"below": []}, {"value": 1, "below": [{}]}],
        **{"$defs": {"tree": TREE}},
    ),
    "reference to a text": one(
        {"$ref": "#/$defs/colour"},
        ["red", "blue"],
        ["green"],
        **{"$defs": {"colour": {"enum": ["red", "blue"]}}},
    ),
    "all of one": one({"allOf": [{"type": "string", "maxLength": 2}]}, ["ab"], ["abc"]),
    "whole schema by reference": {
        "tools": [
            Tool(
                name="do",
                parameters={
                    "$ref": "#/$defs/args",
                    "$defs": {
                        "args": {"type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"]}
                    },
                },
            )
        ],
        "right": [("do", {"x": "y"})],
        "wrong": [("do", {})],
    },
    "required but not described": {
        "tools": [tool("do", {"x": {"type": "integer"}}, "y")],
        "right": [("do", {"y": 1}), ("do", {"x": 1, "y": {"a": None}})],
        "wrong": [("do", {"x": 1})],
    },
}

TOOL_SETS = [ToolSet(name, **said) for name, said in _SETS.items()]
