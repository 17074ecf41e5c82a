"""Sparkle: jobs in, tokens out. The public names, loaded only when asked for; knows no torch."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

# a checker sees plain imports; at run time a name costs its module only when it is used
if TYPE_CHECKING:
    from sparkle.errors import (
        AnswerChanged,
        ConfigError,
        ContractError,
        FailureCode,
        JobFailed,
        MessageTooLarge,
        NotConnected,
        QueueError,
        QueueFull,
        SparkleError,
        TopologyMissing,
    )
    from sparkle.producers.client import Client, connect
    from sparkle.producers.handle import Handle
    from sparkle.schemas.answer import Channel, Chunk, Failure, FinishReason, Result, Usage
    from sparkle.schemas.job import Job, Sampling, Thinking, Turn
    from sparkle.schemas.shape import ChoiceShape, GrammarShape, JsonObjectShape, JsonSchemaShape, RegexShape
    from sparkle.schemas.tools import NamedTool, Tool, ToolCall, ToolCallDelta

__all__ = [
    "AnswerChanged",
    "Channel",
    "ChoiceShape",
    "Chunk",
    "Client",
    "ConfigError",
    "ContractError",
    "Failure",
    "FailureCode",
    "FinishReason",
    "GrammarShape",
    "Handle",
    "Job",
    "JobFailed",
    "JsonObjectShape",
    "JsonSchemaShape",
    "MessageTooLarge",
    "NamedTool",
    "NotConnected",
    "QueueError",
    "QueueFull",
    "RegexShape",
    "Result",
    "Sampling",
    "SparkleError",
    "Thinking",
    "Tool",
    "ToolCall",
    "ToolCallDelta",
    "TopologyMissing",
    "Turn",
    "Usage",
    "connect",
]

_HOMES = {
    "sparkle.producers.client": ("Client", "connect"),
    "sparkle.producers.handle": ("Handle",),
    "sparkle.schemas.answer": ("Channel", "Chunk", "Failure", "FinishReason", "Result", "Usage"),
    "sparkle.schemas.job": ("Job", "Sampling", "Thinking", "Turn"),
    "sparkle.schemas.shape": (
        *("ChoiceShape", "GrammarShape", "JsonObjectShape"),
        *("JsonSchemaShape", "RegexShape"),
    ),
    "sparkle.schemas.tools": ("NamedTool", "Tool", "ToolCall", "ToolCallDelta"),
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = next((home for home, names in _HOMES.items() if name in names), "sparkle.errors")
    value: object = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
