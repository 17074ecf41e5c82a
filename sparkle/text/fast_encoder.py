"""The fast encoder, trusted only after it agrees with the reference on tricky texts. Knows no checkpoint."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import fastokens  # pyright: ignore[reportMissingTypeStubs] # its own hints have no marker file

from sparkle.text.tricky_texts import TRICKY_TEXTS

Encode = Callable[[str], list[int]]
"""A plain text to its token ids; spellings of added tokens in it are text."""

log = logging.getLogger(__name__)


def fast_encoder(path: Path, reference: Encode) -> Encode | None:
    """An encoder many times as fast as `reference`, or None when it cannot be trusted with this tokenizer.

    Costs a second parse of tokenizer.json and some milliseconds of comparing.
    """
    try:
        fast = fastokens.Tokenizer.from_file(str(path))
    except ValueError:
        log.warning("fast_tokenizer_refused", extra={"reason": "cannot_load"})
        return None
    fast.no_truncation()
    fast.no_padding()

    def encode(text: str) -> list[int]:
        ids: list[int] = fast.encode_ordinary(text).ids
        return ids

    number = first_difference(encode, reference)
    if number is not None:
        log.warning("fast_tokenizer_refused", extra={"reason": "ids_differ", "text_number": number})
        return None
    return encode


def first_difference(encode: Encode, reference: Encode) -> int | None:
    """The place of the first of TRICKY_TEXTS that the two encode differently."""
    for number, text in enumerate(TRICKY_TEXTS):
        if encode(text) != reference(text):
            return number
    return None
