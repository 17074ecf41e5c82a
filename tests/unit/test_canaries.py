"""A canary is found in every form that a leak could have, and nowhere else."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable

import pytest

from sparkle.schemas.packing import pack
from tests.canaries import Canaries

TOKENS = [17, 300, 4095, 8, 12, 70_000, 5, 6]

FORMS: dict[str, Callable[[str], bytes]] = {
    "plain": lambda text: f"job failed: {text}!".encode(),
    "upper case": lambda text: text.upper().encode(),
    "cut": lambda text: b"prompt=" + text.encode(),
    "json": lambda text: json.dumps({"prompt": f"\u00e9{text}\n"}).encode(),
    "repr": lambda text: repr({"prompt": f"'{text}\u00e9".encode()}).encode(),
    "msgpack": lambda text: pack({"prompt": text}),
    "utf-16": lambda text: text.encode("utf-16"),
    "utf-16 big-endian": lambda text: b"\x00" + text.encode("utf-16-be"),
    "hex": lambda text: b"ff" + text.encode().hex().encode(),
    "hex in capitals": lambda text: text.encode().hex().upper().encode(),
    "hex dump": lambda text: text.encode().hex(" ").encode(),
    "list of bytes": lambda text: str(list(f"<{text}>".encode())).encode(),
    "unicode escapes": lambda text: "".join(f"\\u{ord(letter):04X}" for letter in text).encode(),
}
TOKEN_FORMS: dict[str, Callable[[list[int]], bytes]] = {
    "list": lambda tokens: f"tokens={tokens}".encode(),
    "json": lambda tokens: json.dumps([1, 2, *tokens], separators=(",", ":")).encode(),
    "words": lambda tokens: " ".join(map(str, tokens)).encode(),
    "int32": lambda tokens: b"\x00" + struct.pack(f"<{len(tokens)}i", *tokens),
    "int64": lambda tokens: struct.pack(f"<{len(tokens)}q", *tokens),
    "msgpack": lambda tokens: pack({"tokens": tokens}),
    "some of them": lambda tokens: str(tokens[:6]).encode(),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_text_is_found_in_every_form(form: str) -> None:
    canaries = Canaries()
    text = canaries.text("the prompt")
    other = canaries.text("the answer")
    assert [hit.partition(" as ")[0] for hit in canaries.found_in(FORMS[form](text))] == ["the prompt"]
    assert [hit.partition(" as ")[0] for hit in canaries.found_in(FORMS[form](other))] == ["the answer"]


@pytest.mark.parametrize("before", range(4))
@pytest.mark.parametrize("after", range(4))
def test_a_text_is_found_in_base64_wherever_it_stands(before: int, after: int) -> None:
    canaries = Canaries()
    coded = base64.b64encode(b"x" * before + canaries.text("the prompt").encode() + b"y" * after)
    assert canaries.found_in(coded)[0].startswith("the prompt as base64")


@pytest.mark.parametrize("form", TOKEN_FORMS)
def test_ids_are_found_in_every_form(form: str) -> None:
    canaries = Canaries()
    canaries.watch_tokens("the prompt", TOKENS)
    (hit,) = canaries.found_in(TOKEN_FORMS[form](TOKENS))
    assert hit.startswith("the prompt as ids")
    assert canaries.found_in(TOKEN_FORMS[form](TOKENS[::-1])) == []


def test_nothing_is_found_where_nothing_is() -> None:
    canaries = Canaries()
    text = canaries.text("the prompt")
    assert canaries.found_in(b"") == canaries.found_in(b"worker_ready " * 1000) == []
    assert canaries.found_in(text[:7].encode() + b"-" + text[7:].encode()) == []
    assert Canaries().found_in(text.encode()) == []
