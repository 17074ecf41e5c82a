"""Functions that a model may call, the calls it makes, and how they come. Knows neither grammar nor text."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from sparkle.schemas.json_object import JsonObject
from sparkle.schemas.message import Part

MAX_TOOLS = 128
MAX_CALLS = 1024

FunctionName = Annotated[
    str, StringConstraints(min_length=1, max_length=128, pattern=r"^[^\s<>\x00-\x1f\x7f-\x9f]+$")
]
"""No space, no angle brackets, no control characters: it stands in the tag of a call."""

CallId = Annotated[str, StringConstraints(min_length=1, max_length=256)]
"""Names one call, so that its outcome finds it."""


class Tool(Part):
    """A function that the model may call."""

    name: FunctionName
    """How the model calls it."""

    description: Annotated[str, StringConstraints(max_length=65_536)] | None = None
    """What it does, for the model."""

    parameters: JsonObject | None = None
    """A JSON schema of its arguments, of type object. Without one it has none."""

    strict: bool = True
    """Refuse parameters of which something cannot be enforced. Without it the calls are kept to as much as
    can be, are checked when they are whole, and the result's `valid` says what came of it."""


class NamedTool(Part):
    """Call this function and no other."""

    name: FunctionName


ToolChoice = Literal["none", "auto", "required"] | NamedTool
"""`none`: never call; `auto`: the model decides; `required`: call at least one; or one by its name."""


class ToolCall(Part):
    """A call, whole."""

    id: CallId
    """Names it among the calls of a conversation."""

    name: FunctionName
    """Of the function."""

    arguments: JsonObject
    """By parameter, in the order in which they were written."""


class ToolCallDelta(Part):
    """A piece of a call. The first one has id and name; the pieces of `arguments` join up to JSON text."""

    index: Annotated[int, Field(ge=0, lt=MAX_CALLS)]
    """Which call of the answer, from 0."""

    id: CallId | None = None
    """On the first piece."""

    name: FunctionName | None = None
    """On the first piece."""

    arguments: str = ""
    """More of the arguments' JSON text."""

    arguments_start: Annotated[int, Field(ge=0)] = 0
    """Code points of this call's arguments before this piece."""
