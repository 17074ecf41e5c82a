"""Turns and tools as chat templates read them: plain objects in the form that all templates share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from sparkle.schemas.job import TextPart, Turn
from sparkle.schemas.tools import Tool


def text_of(turn: Turn) -> str:
    """A turn's text. Its parts are joined, as a template writes them: one after the other."""
    if isinstance(turn.content, str):
        return turn.content
    return "".join(part.text for part in turn.content if isinstance(part, TextPart))


def messages_of(turns: Sequence[Turn]) -> list[dict[str, object]]:
    """A chat's turns. Outcomes of calls come in the order of the calls, for templates write no ids."""
    return [_message(turn) for turn in _in_order_of_calls(turns)]


def tools_of(tools: Sequence[Tool]) -> list[dict[str, object]] | None:
    """The functions that may be called; None without any."""
    return [_function(tool) for tool in tools] or None


def _message(turn: Turn) -> dict[str, object]:
    message: dict[str, object] = {"role": turn.role, "content": text_of(turn)}
    if turn.reasoning is not None:
        message["reasoning_content"] = turn.reasoning
    if turn.tool_calls is not None:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in turn.tool_calls
        ]
    if turn.tool_call_id is not None:
        message["tool_call_id"] = turn.tool_call_id
    return message


def _function(tool: Tool) -> dict[str, object]:
    said = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {
        "type": "function",
        "function": {name: value for name, value in said.items() if value is not None},
    }


def _in_order_of_calls(turns: Sequence[Turn]) -> Iterator[Turn]:
    order: dict[str | None, int] = {}
    for is_tool, run in groupby(turns, lambda turn: turn.role == "tool"):
        if is_tool:
            # an outcome of no known call stays behind those that have one
            yield from sorted(run, key=lambda turn: order.get(turn.tool_call_id, len(order)))
            continue
        for turn in run:
            if turn.tool_calls is not None:
                order = {call.id: place for place, call in enumerate(turn.tool_calls)}
            yield turn
