"""OpenAI's nested forms of tools, tool calls and answer shapes to the contract's flat ones. Knows no job."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from sparkle.producers.gateway.faults import invalid
from sparkle.schemas.json_object import JsonObject
from sparkle.schemas.message import Part
from sparkle.schemas.shape import ChoiceShape, GrammarShape, RegexShape


class FunctionForm(Part):
    """A function that the model may call."""

    name: str
    description: str | None = None
    parameters: JsonObject | None = None
    strict: bool | None = None
    """Whether a schema that cannot be enforced is refused; otherwise its answers are only checked."""


class ToolForm(Part):
    """A tool, as chat completions have it."""

    type: Literal["function"]
    function: FunctionForm


class FlatToolForm(FunctionForm):
    """A tool, as responses have it."""

    type: Literal["function"]


class NamedFunction(Part):
    """The name of a function."""

    name: str


class NamedTool(Part):
    """The one tool to call, as chat completions have it."""

    type: Literal["function"]
    function: NamedFunction


class FlatNamedTool(NamedFunction):
    """The one tool to call, as responses have it."""

    type: Literal["function"]


Choice = Literal["none", "auto", "required"]


class CalledFunction(Part):
    """A function as an earlier turn called it."""

    name: str
    arguments: str
    """A JSON object, as text."""


class ToolCallForm(Part):
    """A call of an earlier turn."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


class NamedSchema(Part):
    """A schema with its name."""

    name: str | None = None
    """Not read."""

    description: str | None = None
    """Not read."""

    schema_: Annotated[JsonObject, Field(alias="schema")]
    strict: bool | None = None


class TextShape(Part):
    """Any text."""

    type: Literal["text"]


class ObjectShape(Part):
    """Any JSON object."""

    type: Literal["json_object"]


class SchemaShape(Part):
    """JSON of a schema, as chat completions have it."""

    type: Literal["json_schema"]
    json_schema: NamedSchema


class FlatSchemaShape(NamedSchema):
    """JSON of a schema, as responses have it."""

    type: Literal["json_schema"]


OwnShape = RegexShape | GrammarShape | ChoiceShape
"""What the contract has beside OpenAI's shapes."""

AnyShape = Annotated[TextShape | ObjectShape | SchemaShape | OwnShape, Field(discriminator="type")]
AnyFlatShape = Annotated[TextShape | ObjectShape | FlatSchemaShape | OwnShape, Field(discriminator="type")]


def job_shape(
    shape: TextShape | ObjectShape | SchemaShape | FlatSchemaShape | OwnShape | None,
) -> dict[str, object] | None:
    """The job's response_format; None is any text."""
    match shape:
        case None | TextShape():
            return None
        case SchemaShape():
            return _schema_shape(shape.json_schema)
        case FlatSchemaShape():
            return _schema_shape(shape)
        case _:
            return shape.model_dump()


def _schema_shape(named: NamedSchema) -> dict[str, object]:
    return {"type": "json_schema", "schema": named.schema_, "strict": bool(named.strict)}


def job_tool(function: FunctionForm) -> dict[str, object]:
    """A tool of the job. OpenAI's functions are not strict unless they say so."""
    tool: dict[str, object] = {
        "name": function.name,
        "parameters": function.parameters,
        "strict": bool(function.strict),
    }
    return tool if function.description is None else {**tool, "description": function.description}


def job_tool_choice(choice: Choice | NamedTool | FlatNamedTool | None) -> object:
    """The job's tool_choice; None leaves the contract's default."""
    match choice:
        case NamedTool():
            return {"name": choice.function.name}
        case FlatNamedTool():
            return {"name": choice.name}
        case _:
            return choice


def tool_fields(
    functions: Sequence[FunctionForm],
    choice: Choice | NamedTool | FlatNamedTool | None,
    *,
    parallel: bool | None,
) -> dict[str, object]:
    """The job's fields about tools: none without a tool. Raises ApiFault for a choice among none."""
    if not functions:
        if choice not in (None, "none", "auto"):
            raise invalid("tool_choice: needs tools", "tool_choice")
        return {}
    return {
        "tools": [job_tool(function) for function in functions],
        "tool_choice": job_tool_choice(choice),
        "parallel_tool_calls": parallel,
    }


def job_call(call_id: str, called: CalledFunction, place: str) -> dict[str, object]:
    """A tool call of an earlier turn. Raises ApiFault unless its arguments are a JSON object."""
    try:
        arguments: object = json.loads(called.arguments or "{}", parse_constant=_refuse)
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        where = f"{place}.arguments"
        raise invalid(f"{where}: must be a JSON object, as text", where)
    return {"id": call_id, "name": called.name, "arguments": arguments}


def _refuse(_: str) -> None:
    raise ValueError
