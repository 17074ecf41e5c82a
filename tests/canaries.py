"""Texts that stand for content, and every form in which one could turn up where no content may be."""

from __future__ import annotations

import base64
import re
import secrets
import string
import struct
from collections.abc import Iterator, Sequence

from sparkle.schemas.packing import pack

LETTERS = 14
"""Of a canary: what cuts texts short for a log keeps more of them."""

RUN_OF_TOKENS = 6
"""So many ids in a row are no coincidence."""


class Canaries:
    """Makes canaries, one a field, and finds them in any bytes."""

    def __init__(self) -> None:
        self._forms: dict[bytes, str] = {}

    def text(self, field: str) -> str:
        """A new text for a field: letters alone, so that no escape changes it, unlike any other."""
        canary = "".join(secrets.choice(string.ascii_lowercase) for _ in range(LETTERS))
        self.watch_text(field, canary)
        return canary

    def watch_text(self, field: str, text: str) -> None:
        """Look for this text as well: an answer, or the form that a canary takes in it."""
        for form, data in text_forms(text):
            self._forms[data] = f"{field} as {form}"

    def watch_tokens(self, field: str, tokens: Sequence[int]) -> None:
        """Look for enough of these ids in a row; fewer are no canary."""
        for start in range(0, len(tokens) - RUN_OF_TOKENS + 1, RUN_OF_TOKENS):
            for form, data in token_forms(tokens[start : start + RUN_OF_TOKENS]):
                self._forms[data] = f"{field} as {form}"

    def found_in(self, data: bytes) -> list[str]:
        """Which fields are in these bytes, and in what form."""
        if not self._forms or not data:
            return []
        any_form = re.compile(b"|".join(map(re.escape, self._forms)))
        return sorted({self._forms[found] for found in any_form.findall(data.lower())})


def text_forms(text: str) -> Iterator[tuple[str, bytes]]:
    """A text as logs, dumps and encoders would write it; in lower case, as all is compared."""
    data = text.encode()
    yield "text", data.lower()
    yield "UTF-16", text.encode("utf-16-le").lower()
    yield "UTF-16, big-endian", text.encode("utf-16-be").lower()
    yield "hexadecimal", data.hex().encode()
    yield "hexadecimal with spaces", data.hex(" ").encode()
    yield "a list of bytes", ", ".join(map(str, data)).encode()
    yield "a list of bytes without spaces", ",".join(map(str, data)).encode()
    yield "escapes", "".join(f"\\u{ord(letter):04x}" for letter in text).encode().lower()
    for name, shift in (("base64", 0), ("base64, shifted by one", 1), ("base64, shifted by two", 2)):
        # of the first and last letters those that depend on what stands beside the text
        coded = base64.b64encode(bytes(shift) + data)
        yield name, coded[4 if shift else 0 : len(coded) // 4 * 4 - 4].lower()


def token_forms(tokens: Sequence[int]) -> Iterator[tuple[str, bytes]]:
    """Token ids as logs and encoders would write them."""
    yield "ids", ", ".join(map(str, tokens)).encode()
    yield "ids without spaces", ",".join(map(str, tokens)).encode()
    yield "ids in words", " ".join(map(str, tokens)).encode()
    yield "ids of 4 bytes", struct.pack(f"<{len(tokens)}i", *tokens).lower()
    yield "ids of 8 bytes", struct.pack(f"<{len(tokens)}q", *tokens).lower()
    # behind a map's first bytes, a key of one letter and an array's first byte
    yield "ids in msgpack", pack({"t": list(tokens)})[4:].lower()
