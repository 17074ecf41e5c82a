"""The tool calls of one answer as far as they are handed out, no piece twice. Knows no chunks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from sparkle.schemas.tools import ToolCall, ToolCallDelta


@dataclass(slots=True)
class _Known:
    name: str
    pieces: list[str] = field(default_factory=list[str])
    chars: int = 0

    def add(self, text: str) -> None:
        self.pieces.append(text)
        self.chars += len(text)

    def text(self) -> str:
        if len(self.pieces) > 1:
            self.pieces[:] = ["".join(self.pieces)]
        return self.pieces[0] if self.pieces else ""


class CallsChanged(Exception):
    """Another call, or other arguments, than those handed out."""


class CallsMissing(Exception):
    """What comes is not joined to what is known."""


class CallsOrder:
    """Calls in the order of the answer; the last one may still grow."""

    def __init__(self) -> None:
        self._known: list[_Known] = []

    def take(self, deltas: Sequence[ToolCallDelta]) -> list[ToolCallDelta]:
        """The new parts of some pieces. Raises CallsChanged, CallsMissing."""
        return [new for delta in deltas if (new := self._new_part(delta)) is not None]

    def finish(self, calls: Sequence[ToolCall]) -> list[ToolCallDelta]:
        """What of the whole calls was not handed out yet. Raises CallsChanged."""
        # one that was cut off is in none of the whole ones
        if len(self._known) > len(calls) + 1:
            raise CallsChanged
        whole = [
            ToolCallDelta(
                index=index,
                id=call.id,
                name=call.name,
                arguments=json.dumps(call.arguments, ensure_ascii=False),
            )
            for index, call in enumerate(calls)
        ]
        return self.take(whole)

    def _new_part(self, delta: ToolCallDelta) -> ToolCallDelta | None:
        if delta.index == len(self._known) and delta.name is not None:
            self._known.append(_Known(delta.name))
            self._known[-1].add(delta.arguments)
            return delta
        if delta.index >= len(self._known):
            raise CallsMissing
        known = self._known[delta.index]
        start, known_chars = delta.arguments_start, known.chars
        if start > known_chars:
            raise CallsMissing
        overlap = known.text()[start : start + len(delta.arguments)] if start < known_chars else ""
        if delta.name not in (None, known.name) or not delta.arguments.startswith(overlap):
            raise CallsChanged
        arguments = delta.arguments[known_chars - start :]
        if not arguments:
            return None
        known.add(arguments)
        return ToolCallDelta(index=delta.index, arguments=arguments, arguments_start=known_chars)


def joined(deltas: Sequence[ToolCallDelta]) -> list[ToolCallDelta]:
    """The same, those of one call in one piece where they adjoin."""
    found: list[ToolCallDelta] = []
    for delta in deltas:
        if found and found[-1].index == delta.index:
            last = found.pop()
            delta = last.model_copy(update={"arguments": last.arguments + delta.arguments})
        found.append(delta)
    return found
