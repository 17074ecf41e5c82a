"""Writes a schema's pattern so that the grammar compiler reads it as JavaScript does. Knows no schema.

Patterns of schemas are ECMA-262's. The compiler's dialect gives more of their characters a meaning; and for a
character that no answer can hold it writes nothing, or lets a quote through: no class here has one.
"""

from __future__ import annotations

import re

from sparkle.errors import UnsupportedSchema

UNWRITABLE = frozenset({*map(chr, range(0x20)), "\x7f"} - set("\b\t\n\f\r"))
"""Characters that JSON can only write as \\u and four digits, which answers do not (see `grammar`)."""

_WRITABLE = r"&&[^\x00-\x07\x0b\x0e-\x1f\x7f]"
_SPACE = r"\t-\r \u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"
_SHORT = {
    **{letter: rf"\{letter}" for letter in "dDwW"},
    "s": f"[{_SPACE}]",
    "S": f"[^{_SPACE}]",
}
_CONTROL = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "v": "\v"}
_SYNTAX = frozenset(r"^$\.*+?()[]{}|/-&~")

_CODE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|u\{([0-9a-fA-F]{1,6})\})")
_PROPERTY = re.compile(r"\\[pP]\{[A-Za-z_]+(?:=[A-Za-z_]+)?\}")
_REPEAT = re.compile(r"(?:[*+?]|\{\d+(?:,\d*)?\})\??")
_GROUP = re.compile(r"\((?:\?:|\?<[A-Za-z_]\w*>|(?!\?))")


def served_pattern(pattern: str, path: str) -> str:
    """`pattern`, which stands at `path` in its schema, as the compiler takes it for the same.

    Raises UnsupportedSchema with the path where the two dialects cannot say the same.
    """
    try:
        return "".join(_pieces(pattern))
    except _NotSaid as what:
        raise UnsupportedSchema(f"schema: {path} has {what}; write it in another way") from None


class _NotSaid(Exception):
    """What the compiler's dialect has no words for."""


def _pieces(pattern: str) -> list[str]:
    pieces: list[str] = []
    place = 0
    while place < len(pattern):
        if repeat := _REPEAT.match(pattern, place):
            if not pieces or pieces[-1][0] in "*+?{(|^":
                raise _NotSaid("a repeat of a repeat, or of nothing")
            piece, place = repeat[0], repeat.end()
        elif pattern[place] == "[":
            piece, place = _class(pattern, place)
        elif pattern[place] == "\\":
            piece, place = _escape(pattern, place)
        else:
            piece, place = _plain(pattern, place)
        pieces.append(piece)
    return pieces


def _plain(pattern: str, place: int) -> tuple[str, int]:
    """A character that stands for itself, an anchor, or what opens a group."""
    if pattern[place] == "(":
        group = _GROUP.match(pattern, place)
        if group is None:
            raise _NotSaid("a group that looks around, or flags")
        return group[0], group.end()
    if pattern[place] == ".":
        return rf"[[^\n\r\u2028\u2029]{_WRITABLE}]", place + 1
    return _written(pattern[place], pattern[place]), place + 1


def _escape(pattern: str, place: int) -> tuple[str, int]:
    """An escape outside a class."""
    letter, members, end = _member(pattern, place)
    return f"[{members}{_WRITABLE}]" if letter is None else _written(letter, _spelled(letter)), end


def _class(pattern: str, place: int) -> tuple[str, int]:
    """A class in brackets, its members spelled so that none of them means more than itself."""
    place += 1
    negated = pattern.startswith("^", place)
    place += negated
    members: list[str] = []
    while not pattern.startswith("]", place):
        low, member, place = _member(pattern, place)
        if low is not None and pattern.startswith("-", place) and not pattern.startswith("-]", place):
            high, _, place = _member(pattern, place + 1)
            if high is None or high < low:
                raise _NotSaid("a range whose ends are not two characters in their order")
            member = f"{_spelled(low)}-{_spelled(high)}"
        members.append(member)
    if not members:
        raise _NotSaid("an empty class")
    inside = "".join(members)
    return f"[[^{inside}]{_WRITABLE}]" if negated else f"[{inside}{_WRITABLE}]", place + 1


def _member(pattern: str, place: int) -> tuple[str | None, str, int]:
    """A character or None, how it or the class for which an escape stands is spelled, and where that ends."""
    if place >= len(pattern):
        raise _NotSaid("a class without its end")
    if pattern[place] != "\\":
        return pattern[place], _spelled(pattern[place]), place + 1
    if code := _CODE.match(pattern, place):
        letter = _letter(int(code[1] or code[2] or code[3], 16))
        return letter, _spelled(letter), code.end()
    if named := _PROPERTY.match(pattern, place):
        return None, named[0], named.end()
    letter = pattern[place + 1 : place + 2]
    end = place + 2
    if letter in _SHORT:
        return None, _SHORT[letter], end
    if letter in _CONTROL:
        return _CONTROL[letter], _spelled(_CONTROL[letter]), end
    if not letter or letter.isalnum():
        raise _NotSaid("an escape that means something else elsewhere, or nothing")
    return letter, _spelled(letter), end


def _letter(number: int) -> str:
    if number > 0x10FFFF or 0xD800 <= number < 0xE000:
        raise _NotSaid("half a surrogate pair, or a number beyond Unicode")
    return chr(number)


def _written(letter: str, spelled: str) -> str:
    if letter in UNWRITABLE:
        raise _NotSaid("a control character, which answers do not hold")
    return spelled


def _spelled(letter: str) -> str:
    return f"\\{letter}" if letter in _SYNTAX else letter
