"""What a schema tells of ways out of its texts and numbers that its grammar does not show. Compiles nothing.

Where a text must have `ab` last, or a number be a multiple of 9,973, all that may follow looks the same from
one place to the next. The pattern tells which letters lead out, and the digits so far which ones are missing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

from sparkle.text.exact_numbers import whole as digits_of
from sparkle.text.pattern_texts import shortest_ways
from sparkle.text.schema_places import as_object, places

MOST_TEXTS = 64
"""The grammar is asked of each, in some microseconds, wherever a text may not end."""
MOST_DIGITS = 6
TRIED_MULTIPLES = 2
"""With each count of digits: the least may be below a bound."""
_NUMBER = re.compile(rb"(?:^|[^0-9.eE+-])-?([0-9]*)(\.[0-9]*)?$")


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownWays:
    """Of all that a schema says; nothing is said of which place it is for."""

    texts: tuple[str, ...] = ()
    """Short ones first, as they are spelled where they stand."""

    text_end: str = '"'
    """What stands behind a text; nothing where the answer ends with it."""

    multiples: tuple[Fraction, ...] = ()
    """What numbers are to be multiples of."""

    def digits(self, written: bytes) -> Iterator[str]:
        """Those that make a number a multiple which `written` ends in the midst of, or in front of."""
        number = _NUMBER.search(written)
        if number is None:
            return
        whole, rest = number[1].decode(), None if number[2] is None else number[2][1:].decode()
        for multiple in self.multiples:
            yield from _missing(whole, rest, multiple)


NOTHING_KNOWN = KnownWays()


def ways_of_schema(schema: object) -> KnownWays:
    """Those of a schema that was checked."""
    patterns, multiples = dict[str, None](), dict[Fraction, None]()
    for place in places(schema):
        pattern, multiple = place.keywords.get("pattern"), place.keywords.get("multipleOf")
        if isinstance(pattern, str):
            patterns[pattern] = None
        patterns |= dict.fromkeys(as_object(place.keywords.get("patternProperties")))
        if isinstance(multiple, int | float) and multiple > 0:
            multiples[Fraction(Decimal(repr(multiple)))] = None
    texts = {_within_json(text): None for pattern in patterns for text in shortest_ways(pattern)}
    return KnownWays(texts=tuple(sorted(texts, key=len)[:MOST_TEXTS]), multiples=(*multiples,))


def ways_of_regex(pattern: str) -> KnownWays:
    """Those of an answer that matches a pattern."""
    return KnownWays(texts=tuple(shortest_ways(pattern)[:MOST_TEXTS]), text_end="")


def _within_json(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _missing(whole: str, rest: str | None, multiple: Fraction) -> Iterator[str]:
    """Digits behind those of a number, few ones first; `rest` are those behind its point, if it has one."""
    for count in range(1, MOST_DIGITS + 1):
        behind_point = 0 if rest is None else len(rest) + count
        # the number that all digits make without the point is to be a multiple of this
        step = (multiple * 10**behind_point).numerator
        number = digits_of(whole + (rest or "") or "0") * 10**count
        # a number does not begin with 0, unless it is that
        first = -number % step if whole or count == 1 else 10 ** (count - 1) + -(10 ** (count - 1)) % step
        for digits in range(first, min(10**count, first + TRIED_MULTIPLES * step), step):
            yield f"{digits:0{count}}"
