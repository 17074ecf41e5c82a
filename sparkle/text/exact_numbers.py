"""Numbers of JSON as they are written, and what JSON schemas ask of them. Knows no schema.

A number is an int or a Decimal here: a float would be another number than the answer has.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import cast

LARGE_EXPONENT = 10**17
"""A Decimal has up to 18 digits of it."""


def whole(digits: str) -> int:
    """A whole number of any length; `int` takes 4,300 digits at most."""
    return int(digits) if len(digits) < 4_300 else int(Decimal(digits))


def number(written: str) -> Decimal:
    """A number with a point or an exponent; one beyond a Decimal's is taken for one that is large as well."""
    try:
        return Decimal(written)
    except InvalidOperation:
        digits, exponent = re.split("[eE]", written)
        return Decimal(f"{digits}e{'-' * exponent.startswith('-')}{LARGE_EXPONENT}")


def exact(value: object) -> object:
    """A copy of what `json.loads` gives, each float as the number that was written."""
    if isinstance(value, float):
        return Decimal(repr(value))
    if isinstance(value, Mapping):
        return {name: exact(held) for name, held in cast(Mapping[str, object], value).items()}
    if isinstance(value, list):
        return [exact(held) for held in cast(list[object], value)]
    return value


def is_whole(value: object) -> bool:
    """Whether it is a number without a fraction, also one that is written with a point."""
    if isinstance(value, bool):
        return False
    return isinstance(value, int) or (isinstance(value, Decimal) and is_multiple(value, 1))


def is_multiple(value: int | Decimal, of: int | Decimal) -> bool:
    """Whether `value` is `of`, over 0, times a whole number. No large power of ten is written out for it."""
    if not value:
        return True
    digits, exponent = _parts(value)
    of_digits, of_exponent = _parts(of)
    shift = exponent - of_exponent
    if shift >= 0:
        return digits * pow(10, shift, of_digits) % of_digits == 0
    # what has fewer digits than the power of ten has zeros is no multiple of it
    return -shift <= digits.bit_length() and digits % (of_digits * 10**-shift) == 0


def _parts(value: int | Decimal) -> tuple[int, int]:
    """The number without its sign and point, and the power of ten that it is to be taken by."""
    if isinstance(value, int):
        return abs(value), 0
    _, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)  # only infinities and such have letters there, and JSON has none
    return whole("".join(map(str, digits))), exponent
