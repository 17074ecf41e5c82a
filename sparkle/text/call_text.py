"""Reads one tool call while it is written: its name, then its arguments as JSON text. Knows no tokens.

What comes in is the text between the call's two tags, in pieces of any size; what goes out is final. The JSON
is exactly what `json.dumps` makes of the arguments, so a text streams as it is written and any other value
comes when it is whole.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from sparkle.text.call_grammar import VALUE_END
from sparkle.text.call_values import JSON, CallForms, ValueForm
from sparkle.text.stop_strings import StopStrings

_FUNCTION, _PARAMETER, _TAG_END, _CALL_END = "\n<function=", "<parameter=", ">\n", "</function>\n"


class CallText:
    """One call. Text of another form than the grammar's raises nothing and yields nothing more."""

    def __init__(self, forms: CallForms) -> None:
        self.name: str | None = None
        """The function's name, once it is written."""
        self.whole = False
        """Whether all of the call has come."""
        self._forms = forms
        self._parameters: Mapping[str, ValueForm] = {}
        self._waiting = ""
        self._value: _Value | None = None
        self._opened = False

    def push(self, text: str) -> str:
        """More of the call; the arguments' JSON text that became final with it."""
        self._waiting += text
        pieces: list[str] = []
        while not self.whole and (piece := self._step()) is not None:
            pieces.append(piece)
        return "".join(pieces)

    def _step(self) -> str | None:
        """What the next part of the text comes to; None where it must go on first."""
        if self._value is not None:
            return self._more_of_value(self._value)
        if self.name is None:
            self.name = self._tag(_FUNCTION)
            self._parameters = self._forms.get(self.name or "", {})
            return None if self.name is None else ""
        if self._waiting.startswith(_CALL_END):
            self.whole = True
            return "}" if self._opened else "{}"
        name = self._tag(_PARAMETER)
        if name is None:
            return None
        self._value = _Value(self._parameters.get(name, JSON))
        opening = ", " if self._opened else "{"
        self._opened = True
        return f"{opening}{json.dumps(name, ensure_ascii=False)}: "

    def _tag(self, opening: str) -> str | None:
        """The name in a tag, taken off the text; None where it is not whole yet."""
        end = self._waiting.find(_TAG_END)
        if end < 0 or not self._waiting.startswith(opening):
            return None
        name = self._waiting[len(opening) : end]
        self._waiting = self._waiting[end + len(_TAG_END) :]
        return name

    def _more_of_value(self, value: _Value) -> str | None:
        text, self._waiting = self._waiting, ""
        if not text:
            return None
        piece, rest = value.push(text)
        if rest is not None:
            self._value, self._waiting = None, rest
        return piece


class _Value:
    """One value, to where it ends."""

    def __init__(self, form: ValueForm) -> None:
        self._form = form
        self._end = StopStrings([VALUE_END])
        self._came = 0
        self._final = 0
        self._kept = ""
        self._streams = False

    def push(self, text: str) -> tuple[str, str | None]:
        """The JSON text that became final, and what stands behind the value; None before its end."""
        before, self._came = self._came, self._came + len(text)
        final, ended = self._end.push(text)
        self._final += len(final)
        rest = text[self._final + len(VALUE_END) - before :] if ended else None
        return self._json(final, ended=ended), rest

    def _json(self, final: str, *, ended: bool) -> str:
        if self._streams:
            return _inside(final) + ('"' if ended else "")
        self._kept += final
        if ended:
            return json.dumps(self._form.value(self._kept), ensure_ascii=False)
        if not self._form.is_text(self._kept):
            return ""
        self._streams = True
        return '"' + _inside(self._kept)


def _inside(text: str) -> str:
    """A part of a text in JSON, without the quotes: its letters are escaped one by one."""
    return json.dumps(text, ensure_ascii=False)[1:-1]
