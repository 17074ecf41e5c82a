"""Pieces of tool calls in a frame's plain form, put together where they follow each other. Knows no frame."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def joined(pieces: Sequence[Sequence[Any]]) -> list[list[Any]]:
    """[call, name or None, JSON text, its start] each, those of one call in one piece where they adjoin."""
    found: list[list[Any]] = []
    for index, name, arguments, start in pieces:
        if found and found[-1][0] == index:
            found[-1][2] += arguments
        else:
            found.append([index, name, arguments, start])
    return found
