"""The tool calls of one job's answer while they grow. Knows neither frames nor the queue."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import JsonValue

from sparkle.errors import EngineError
from sparkle.schemas.tools import ToolCall, ToolCallDelta


def call_id(job: str, index: int) -> str:
    """The id of a job's call: the same in every attempt, and another one for every job and call."""
    return f"call_{hashlib.sha256(f'{job}/{index}'.encode()).hexdigest()[:24]}"


@dataclass(slots=True)
class _Call:
    name: str
    pieces: list[str] = field(default_factory=list[str])
    chars: int = 0


class CallsSoFar:
    """What the engine has written of a job's calls; pieces as in `engine.frames.Delta.calls`."""

    def __init__(self, job: str) -> None:
        self._job = job
        self._calls: list[_Call] = []

    def add(self, pieces: Sequence[Sequence[Any]]) -> None:
        """Take the next pieces. Raises EngineError if one does not go on where the last one ended."""
        for index, name, arguments, start in pieces:
            if name is not None and index == len(self._calls):
                self._calls.append(_Call(name))
            written = self._calls[-1].chars if self._calls else 0
            if index != len(self._calls) - 1 or start != written:
                raise EngineError(
                    f"piece of call {index} starts at character {start} "
                    f"but {len(self._calls)} calls and {written} characters of the last one were written"
                )
            self._calls[-1].pieces.append(arguments)
            self._calls[-1].chars += len(arguments)

    def deltas(self, pieces: Sequence[Sequence[Any]]) -> list[ToolCallDelta]:
        """The same pieces as parts of a chunk."""
        return [
            ToolCallDelta(
                index=index,
                id=None if name is None else call_id(self._job, index),
                name=name,
                arguments=arguments,
                arguments_start=start,
            )
            for index, name, arguments, start in pieces
        ]

    @property
    def is_cut(self) -> bool:
        """Whether the last call has no end yet."""
        return bool(self._calls) and _arguments(self._calls[-1]) is None

    def whole(self) -> list[ToolCall]:
        """The calls that came to their end: all, or all but the last."""
        found: list[ToolCall] = []
        for index, call in enumerate(self._calls):
            arguments = _arguments(call)
            if arguments is not None:
                found.append(ToolCall(id=call_id(self._job, index), name=call.name, arguments=arguments))
        return found


def _arguments(call: _Call) -> dict[str, JsonValue] | None:
    """The call's arguments; None before its end, up to which their text is no JSON."""
    try:
        arguments: dict[str, JsonValue] = json.loads("".join(call.pieces))
    except ValueError:
        return None
    return arguments
