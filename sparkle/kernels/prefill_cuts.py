"""Cuts a chunk's attention into calls whose shapes come again and again. Knows no tensor.

cuDNN makes a plan for each shape that it has not met, which takes 60 ms on an H200. Contexts and chunks of a
mixed load have any length, so nearly every chunk would be met for the first time. Cut as here there are few
shapes: keys before the chunk are taken in runs of few lengths, and rows are filled up to one of few numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise

BLOCK_TOKENS = 1024
"""Runs are a power of two of it, or of WHOLE_TOKENS; or three."""
WHOLE_TOKENS = 8448
"""The engine's whole pass, which long prompts alone are read in: met most, so nothing is added to it."""
LEAST_ROWS = 256
STEPS = 4
"""Numbers of rows between a power of two and the next one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cuts:
    """The calls for one chunk, in tokens."""

    runs: tuple[tuple[int, int], ...]
    """Start and end of keys that every row of the chunk sees: one call each, of `rows` rows."""

    rows: int
    """The chunk's, and more behind them."""

    start: int
    """Where the keys of the last call begin, in which a row sees those up to its own; the runs end there."""

    own_rows: int
    """Rows of the last call, and its keys: those from `start` on, the chunk's, and more behind them."""


def cuts_of(context: int, rows: int) -> Cuts:
    """For `rows` rows, at least one, behind `context` keys."""
    by_blocks = _lengths(context, BLOCK_TOKENS)
    by_wholes = [*_lengths(context, WHOLE_TOKENS), *_lengths(context % WHOLE_TOKENS, BLOCK_TOKENS)]
    lengths = min(by_blocks, by_wholes, key=lambda found: (len(found), -sum(found)))
    ends = [0, *accumulate(lengths)]
    return Cuts(
        runs=tuple(pairwise(ends)),
        rows=filled_rows(rows),
        start=ends[-1],
        own_rows=filled_rows(context - ends[-1] + rows),
    )


def filled_rows(rows: int) -> int:
    """The least of the few numbers that has room."""
    if rows == WHOLE_TOKENS:
        return rows
    step = max(LEAST_ROWS, (1 << (rows - 1).bit_length()) // (2 * STEPS))
    return -(-rows // step) * step


def _lengths(tokens: int, unit: int) -> list[int]:
    """Of `tokens` as much as units make up: powers of two of them, the largest first, but three as one."""
    units = tokens // unit
    lengths: list[int] = []
    while units:
        most = units if units == 3 else 1 << (units.bit_length() - 1)
        lengths.append(most * unit)
        units -= most
    return lengths
