"""JSON as a field of a message: what the queue can carry, and nothing of it in an error. Knows no schema."""

from __future__ import annotations

import math
from typing import Annotated

from pydantic import AfterValidator, JsonValue

SMALLEST_WHOLE = -(2**63)
LARGEST_WHOLE = 2**64 - 1
"""Whole numbers on the queue have 64 bits."""


def _require_carried(fields: dict[str, JsonValue]) -> dict[str, JsonValue]:
    waiting: list[JsonValue] = [fields]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            waiting += [*value, *value.values()]
        elif isinstance(value, list):
            waiting += value
        elif isinstance(value, str):
            _require_text(value)
        elif isinstance(value, float) and not math.isfinite(value):
            # the library lets NaN and 1e999 pass where it reads JSON itself
            raise ValueError("holds a number that is not finite, which JSON cannot write; leave it out")
        elif isinstance(value, int) and not SMALLEST_WHOLE <= value <= LARGEST_WHOLE:
            raise ValueError("holds a whole number over 64 bits; write it as a text or with an exponent")
    return fields


def _require_text(value: str) -> None:
    try:
        value.encode()
    except UnicodeEncodeError:
        # the library's own error is a ValueError too, and has the text in it
        raise ValueError("holds half a surrogate pair; send text that UTF-8 can write") from None


JsonObject = Annotated[dict[str, JsonValue], AfterValidator(_require_carried)]
"""A JSON object, its keys in their order; some 250 levels deep at most."""
