"""The shortest texts that lead out of a pattern, from each of its places. Knows no schema and no compiler.

Within a text that a pattern must match, some place of the pattern comes next: a character of it, or its end.
From each place the shortest way to the end is a text, and there are no more of these than the pattern has
places. What is written of a class is any character that it seems to hold. So they are proposals: whoever
uses one asks the grammar.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

MOST_LETTERS = 64
"""Of a text; a longer one is no short ending."""
MOST_TIMES = MOST_LETTERS
MOST_GROUPS = 100
"""Of a pattern that is read at all: one may stand in the other."""
LETTERS = "a0A1-_.@ /:é中"
"""Tried in a class, the first that it holds is taken."""

_TOKEN = re.compile(
    r"(?P<repeat>[*+?]|\{(?P<least>\d+)(?:,\d*)?\})\??"
    r"|(?P<open>\((?:\?:|\?<[A-Za-z_]\w*>)?)|(?P<close>\))|(?P<or>\|)|(?P<anchor>[\^$]|\\[bB])"
    r"|(?P<class>\[\^?(?:\\.|[^\]\\])*\]|\\[pP]\{[^}]*\}|\\[dDwWsS]|\.)"
    r"|\\(?:u\{(?P<long>[0-9a-fA-F]{1,6})\}|u(?P<four>[0-9a-fA-F]{4})|x(?P<two>[0-9a-fA-F]{2}))"
    r"|\\?(?P<letter>.)",
    re.DOTALL,
)
_NESTED = re.compile(r"\\.|[\[&~|]|-(?=-)", re.DOTALL)
"""What Python may take for more than itself within a class."""
_CONTROL = {r"\t": "\t", r"\n": "\n", r"\r": "\r", r"\f": "\f"}

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class _Part:
    """Some of a pattern: its shortest text, and how to tell of the ways from each of its places."""

    shortest: str
    tell: Callable[[str, Tell], None]
    """(the shortest text behind it, whom to tell)"""


def shortest_ways(pattern: str) -> list[str]:
    """Texts, the shortest first, of MOST_LETTERS at most; of a pattern in a form that is not known, fewer."""
    found: dict[str, None] = {}
    if pattern.count("(") > MOST_GROUPS:
        return []

    def tell(text: str) -> None:
        if text and len(text) <= MOST_LETTERS:
            found[text] = None

    _Reader(pattern).whole().tell("", tell)
    return sorted(found, key=len)


class _Reader:
    """Reads a pattern from left to right."""

    def __init__(self, pattern: str) -> None:
        self._tokens = list(_TOKEN.finditer(pattern))
        self._next = 0

    def whole(self) -> _Part:
        """All of it, or what is in front of the next bracket that closes."""
        others, parts = list[_Part](), list[_Part]()
        while self._next < len(self._tokens):
            token = self._tokens[self._next]
            self._next += 1
            if token["close"]:
                break
            if token["or"]:
                others.append(_row(parts))
                parts = []
            elif token["repeat"]:
                if parts:
                    parts[-1] = _repeated(parts[-1], _least(token))
            elif token["open"]:
                parts.append(self.whole())
            elif not token["anchor"]:
                parts.append(_letter(_sample(token)))
        return _either([*others, _row(parts)])


def _letter(letter: str) -> _Part:
    return _Part(letter, lambda behind, tell: tell(letter + behind))


def _row(parts: list[_Part]) -> _Part:
    """One behind the other."""

    def tell_of(behind: str, tell: Tell) -> None:
        for part in reversed(parts):
            if len(behind) > MOST_LETTERS:
                return
            part.tell(behind, tell)
            behind = part.shortest + behind

    return _Part("".join(part.shortest for part in parts), tell_of)


def _either(parts: list[_Part]) -> _Part:
    def tell_of(behind: str, tell: Tell) -> None:
        for part in parts:
            part.tell(behind, tell)

    return _Part(min((part.shortest for part in parts), key=len), tell_of)


def _repeated(part: _Part, least: int) -> _Part:
    """So many times at least; from the last of these on it may go on as often as it likes."""
    return _row([part] * least) if least else _Part("", part.tell)


def _least(token: re.Match[str]) -> int:
    if token["least"]:
        return min(int(token["least"]), MOST_TIMES + 1)
    return int(token["repeat"] == "+")


def _sample(token: re.Match[str]) -> str:
    """A character that the token stands for."""
    if token["class"]:
        return _member(token["class"])
    code = token["long"] or token["four"] or token["two"]
    if code:
        return chr(min(int(code, 16), 0x10FFFF))
    return _CONTROL.get(token[0]) or token["letter"]


def _member(of: str) -> str:
    if of[0] == "[":
        of = of[0] + _NESTED.sub(lambda found: found[0] if found[0][1:] else rf"\{found[0]}", of[1:])
    try:
        held = re.compile(of)
    except re.error:
        # as \p{...}: most of these have letters
        return LETTERS[0]
    ascii_ = map(chr, range(0x21, 0x7F))
    return next((letter for letter in (*LETTERS, *ascii_) if held.fullmatch(letter)), LETTERS[0])
