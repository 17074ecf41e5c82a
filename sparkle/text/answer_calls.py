"""The tool calls of one answer, as pieces while they are written. Knows no tokens and no prose."""

from __future__ import annotations

from dataclasses import dataclass

from sparkle.text.call_text import CallText
from sparkle.text.call_values import CallForms


@dataclass(frozen=True, slots=True)
class CallPiece:
    """More of a call."""

    index: int
    """Which call of the answer, from 0."""

    name: str | None
    """Of the function, on the call's first piece."""

    arguments: str
    """More of the arguments' JSON text; the first piece may have none."""

    arguments_start: int
    """Code points of the call's arguments before this piece."""


class AnswerCalls:
    """One call after another."""

    def __init__(self, forms: CallForms) -> None:
        self._forms = forms
        self._call: CallText | None = None
        self._begun = 0
        self._named = False
        self._written = 0

    @property
    def begun(self) -> bool:
        """Whether there was a call: what follows is no prose."""
        return self._begun > 0

    @property
    def whole(self) -> bool:
        """Whether there was a call, and the last one is whole."""
        return self._call is not None and self._call.whole

    def begin(self) -> None:
        """The tag that begins a call has come."""
        self._call = CallText(self._forms)
        self._begun += 1
        self._named, self._written = False, 0

    def push(self, text: str) -> list[CallPiece]:
        """More text behind the tag, or between two calls: one piece, or none."""
        call = self._call
        if call is None or call.whole:
            return []
        arguments = call.push(text)
        name = None if self._named else call.name
        if name is None and not arguments:
            return []
        self._named = True
        start, self._written = self._written, self._written + len(arguments)
        return [CallPiece(self._begun - 1, name, arguments, start)]
