"""Keeps text of a request from becoming control tokens, through any template. Knows no ids and no Jinja.

Before a template sees it, every text of the request is fenced: a mark, one character that is in none of the
texts, is put around it and after each character that a control token could start with. What the template
then writes is cut at the control tokens' spellings, and the marks are taken out. A spelling that has a
character of the request in it has a mark in it too and is no longer one; the template's own tags have none.
See docs/decisions/0003-content-is-never-control.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from sparkle.errors import InvalidMessage

PRIVATE_USE = (range(0xE000, 0xF900), range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE))
"""Code points that Unicode gives no meaning: marks are taken from these."""


class Fence:
    """The fence for one tokenizer's control tokens: two characters or more each, no white space."""

    def __init__(self, spellings: Iterable[str]) -> None:
        # the longest first, as tokenizers choose where two spellings start alike
        longest_first = sorted(spellings, key=len, reverse=True)
        self._initials = {spelling[0] for spelling in longest_first}
        self._spelling = re.compile("|".join(map(re.escape, longest_first)))

    def around(self, text: str, mark: str) -> str:
        """`text` with marks. White space at its ends stays outside, so that a template can trim it."""
        body = text.strip()
        if not body:
            return text
        start = text.index(body[0])
        end = start + len(body)
        for initial in self._initials:
            body = body.replace(initial, initial + mark)
        return f"{text[:start]}{mark}{body}{mark}{text[end:]}"

    def pieces(self, rendered: str, mark: str) -> Iterator[tuple[str, bool]]:
        """The text without marks, in order: (a control token's spelling, True) or (plain text, False)."""
        position = 0
        for found in self._spelling.finditer(rendered):
            if found.start() > position:
                yield rendered[position : found.start()].replace(mark, ""), False
            yield found[0], True
            position = found.end()
        if position < len(rendered):
            yield rendered[position:].replace(mark, ""), False


def unused_mark(texts: Iterable[str]) -> str:
    """The first private-use character that is in none of `texts`. Raises InvalidMessage when all are used."""
    used = set[str]().union(*texts)
    for block in PRIVATE_USE:
        for code_point in block:
            if chr(code_point) not in used:
                return chr(code_point)
    raise InvalidMessage("messages: use every private-use character of Unicode; leave one out")
