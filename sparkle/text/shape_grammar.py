"""The grammar of a job's answer: its shape, calls of its tools, prose around them. Compiles nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import cast

from llguidance import regex_to_lark

from sparkle.errors import GrammarError, InvalidGrammar
from sparkle.schemas.job import Job
from sparkle.schemas.shape import (
    ChoiceShape,
    GrammarShape,
    JsonObjectShape,
    JsonSchemaShape,
    RegexShape,
)
from sparkle.schemas.tools import NamedTool, Tool
from sparkle.text.call_grammar import calls_grammar
from sparkle.text.call_values import JSON, CallForms
from sparkle.text.grammar import checked_schema
from sparkle.text.known_ways import NOTHING_KNOWN, KnownWays, ways_of_regex, ways_of_schema
from sparkle.text.lark_source import guarded_lark
from sparkle.text.schema_draft import require_schema
from sparkle.text.schema_keywords import check_pattern
from sparkle.text.schema_limits import SchemaLimits
from sparkle.text.tool_parameters import TYPES, Parameters, looser_parameters_of, parameters_of

_PROSE = "PROSE: /(?s:.+)/\n"
"""Anything but tokens that no text is spelled with: what looks like a tag in it is text."""


@dataclass(frozen=True, slots=True)
class AnswerGrammar:
    """The grammar of one job's answer."""

    text: str
    """As the compiler reads it."""

    exact: bool
    """Whether it says all that the job asks for."""

    calls: CallForms | None
    """None where the answer has no calls."""

    known: KnownWays
    """What helps to end an answer that is no call."""


def answer_grammar(job: Job, limits: SchemaLimits, *, loosest: bool = False) -> AnswerGrammar | None:
    """The grammar of the job's answer; None where it is any text.

    With `loosest` all that is not strict is kept to its types only. Raises InvalidGrammar, UnsupportedSchema,
    GrammarTooComplex; where tools are at fault their texts begin with `tools.<n>`.
    """
    if job.response_format is None and job.tools is None:
        return None
    shape = None if job.response_format is None else _shape(job.response_format, limits, loosest=loosest)
    tools = _tools(job, limits, loosest=loosest)
    exact = (shape is None or shape.exact) and all(one.exact for one in tools.values())
    known = NOTHING_KNOWN if shape is None else shape.known
    if not tools:
        whole = _whole("start: PROSE\n" + _PROSE if shape is None else None, shape)
        return AnswerGrammar(whole, exact, None, known)
    start = _start(job, shape) + calls_grammar(tools, parallel=job.parallel_tool_calls)
    return AnswerGrammar(_whole(start, shape), exact, _forms(tools), known)


def require_schemas(job: Job, limits: SchemaLimits) -> None:
    """Raises InvalidGrammar where a schema of the job is none: of such a one no keyword is at fault."""
    if isinstance(job.response_format, JsonSchemaShape):
        require_schema(job.response_format.json_schema, limits)
    for place, tool in enumerate(job.tools or ()):
        try:
            require_schema(tool.parameters or {}, limits)
        except InvalidGrammar as error:
            raise InvalidGrammar(f"tools.{place}: {error}") from None


@dataclass(frozen=True, slots=True)
class _ShapeGrammar:
    """What stands for a shape in the compiler's list of grammars."""

    fields: Mapping[str, object]
    exact: bool = True
    known: KnownWays = NOTHING_KNOWN


def _start(job: Job, shape: _ShapeGrammar | None) -> str:
    """The rule that the answer begins with: what it may be besides calls."""
    if job.tool_choice != "auto":
        return "start: calls\n"
    if shape is not None:
        return "start: @shape | calls\n"
    return "start: PROSE | calls | PROSE calls\n" + _PROSE


def _whole(start: str | None, shape: _ShapeGrammar | None) -> str:
    """All grammars, the one to begin with first."""
    grammars = [] if start is None else [{"name": "start", "lark_grammar": start}]
    if shape is not None and (start is None or "@shape" in start):
        grammars.append({"name": "shape", **cast("dict[str, str]", shape.fields)})
    return json.dumps({"grammars": grammars}, ensure_ascii=False)


def _shape(
    shape: JsonSchemaShape | JsonObjectShape | RegexShape | GrammarShape | ChoiceShape,
    limits: SchemaLimits,
    *,
    loosest: bool,
) -> _ShapeGrammar:
    match shape:
        case JsonSchemaShape():
            return _json_schema(shape, limits, loosest=loosest)
        case JsonObjectShape():
            return _of_schema({"type": "object"}, limits)
        case RegexShape():
            check_pattern(shape.pattern, limits)
            lark = f"start: /{regex_to_lark(shape.pattern, '')}/"
            return replace(_of_lark(lark), known=ways_of_regex(shape.pattern))
        case GrammarShape():
            return _of_lark(guarded_lark(shape.grammar, limits))
        case ChoiceShape():
            choices = " | ".join(json.dumps(choice) for choice in dict.fromkeys(shape.choices))
            return _of_lark(f"start: CHOICE\nCHOICE: {choices}")


def _json_schema(shape: JsonSchemaShape, limits: SchemaLimits, *, loosest: bool) -> _ShapeGrammar:
    if not loosest or shape.strict:
        try:
            return _of_schema(shape.json_schema, limits)
        except GrammarError:
            if shape.strict:
                raise
    require_schema(shape.json_schema, limits)
    type_ = shape.json_schema.get("type")
    plain = isinstance(type_, str) and type_ in TYPES
    return _of_schema({"type": type_} if plain else {}, limits, exact=False)


def _of_schema(schema: Mapping[str, object], limits: SchemaLimits, *, exact: bool = True) -> _ShapeGrammar:
    checked = json.loads(checked_schema(schema, limits))
    return _ShapeGrammar({"json_schema": checked}, exact, ways_of_schema(schema))


def _of_lark(lark: str) -> _ShapeGrammar:
    return _ShapeGrammar({"lark_grammar": lark})


def _tools(job: Job, limits: SchemaLimits, *, loosest: bool) -> dict[str, Parameters]:
    """By name, the tools that may be called."""
    if job.tool_choice == "none":
        return {}
    found: dict[str, Parameters] = {}
    for place, tool in enumerate(job.tools or ()):
        if isinstance(job.tool_choice, NamedTool) and tool.name != job.tool_choice.name:
            continue
        looser = loosest and not tool.strict
        found[tool.name] = _named(place, tool, limits, looser_parameters_of if looser else parameters_of)
    return found


def _named(
    place: int, tool: Tool, limits: SchemaLimits, parameters: Callable[[Tool, SchemaLimits], Parameters]
) -> Parameters:
    try:
        return parameters(tool, limits)
    except GrammarError as error:
        # which of the tools it is, by its place: names are content
        raise type(error)(f"tools.{place}: {error}") from None


def _forms(tools: Mapping[str, Parameters]) -> CallForms:
    return {
        name: {one.name: JSON if one.raw is None else one.raw.form for one in parameters.listed}
        for name, parameters in tools.items()
    }
