"""How the text of a parameter in a tool call becomes a JSON value. Knows no tags and no grammar.

A text is written as it is, all else as JSON. Where a parameter may be either, what reads as a null, a boolean
or a number that it may be is that; any other text is a text.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from pydantic import JsonValue

from sparkle.errors import MatcherFailed
from sparkle.schemas.json_object import LARGEST_WHOLE, SMALLEST_WHOLE

NUMBER = r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?"
"""A number in JSON, for Python's regular expressions and for the grammar compiler's."""

_BEGINS = re.compile(r"-?[0-9.eE+-]*")


class Scalar(StrEnum):
    """Kinds of values that read alike as text and as JSON."""

    NULL = "null"
    BOOLEAN = "boolean"
    NUMBER = "number"


@dataclass(frozen=True, slots=True)
class ValueForm:
    """What the values of one parameter are written as."""

    raw: bool
    """Whether texts are written as they are; else the value is JSON, whatever it is."""

    scalars: frozenset[Scalar] = frozenset()
    """With `raw`: what else it may be."""

    def value(self, written: str) -> JsonValue:
        """The value that is written so, its numbers as the queue carries them.

        Raises MatcherFailed where it is no JSON.
        """
        if self.raw and not self._is_scalar(written):
            return written
        try:
            value: JsonValue = json.loads(
                written, parse_int=_whole, parse_float=_finite, parse_constant=_no_number
            )
        except (ValueError, RecursionError):
            raise MatcherFailed(
                "grammar: a value in a tool call is no JSON that can be sent on; send the job again"
            ) from None
        return value

    def is_text(self, written: str) -> bool:
        """Whether the value is a text, however what is `written` so far goes on."""
        if not self.raw:
            return False
        words = [word for scalar in self.scalars for word in _WORDS[scalar]]
        may_be_number = Scalar.NUMBER in self.scalars and _BEGINS.fullmatch(written)
        return not may_be_number and not any(word.startswith(written) for word in words)

    def _is_scalar(self, written: str) -> bool:
        if Scalar.NUMBER in self.scalars and re.fullmatch(NUMBER, written):
            return True
        return any(written in _WORDS[scalar] for scalar in self.scalars)


_WORDS: dict[Scalar, tuple[str, ...]] = {
    Scalar.NULL: ("null",),
    Scalar.BOOLEAN: ("true", "false"),
    Scalar.NUMBER: (),
}

JSON = ValueForm(raw=False)

CallForms = Mapping[str, Mapping[str, ValueForm]]
"""By tool and parameter, what its values are written as."""


def _whole(digits: str) -> int | float:
    """A whole number as the queue carries it: of more than 64 bits it is the nearest one with an exponent."""
    if len(digits) <= len(str(SMALLEST_WHOLE)) and SMALLEST_WHOLE <= int(digits) <= LARGEST_WHOLE:
        return int(digits)
    return _finite(digits)


def _finite(digits: str) -> float:
    """A number as the queue carries it: one beyond all is the largest, or the smallest."""
    return min(max(float(digits), -sys.float_info.max), sys.float_info.max)


def _no_number(word: str) -> float:
    raise ValueError
