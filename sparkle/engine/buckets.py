"""The shapes of passes that are captured as graphs, and which of them a pass takes. Knows no torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sparkle.engine.plan import MAX_DRAFT_TOKENS

WIDTHS = (1, 4, 8, 1 + MAX_DRAFT_TOKENS)
"""Rows of one sequence in such a pass, as many as are worth a graph."""
PAIR = 2
"""Rows of one sequence where so many are written that no other draft fits."""
MAX_ROWS = 128
"""Rows of such a pass at most: up to here the products' cost is the weights' alone."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """Room for up to `sequences` spans of up to `width` rows."""

    sequences: int
    width: int
    guesses: bool = False
    """Whether the draft model guesses behind each sequence's first row."""

    @property
    def rows(self) -> int:
        """Rows computed, used or not."""
        return self.sequences * self.width


def widths_for(draft_tokens: int) -> tuple[int, ...]:
    """Widths of passes with drafts of up to so many tokens: the last of them has room for the longest."""
    rows = 1 + draft_tokens
    return tuple(width for width, room in zip(WIDTHS, (0, *WIDTHS), strict=False) if room < rows)


def buckets_for(num_slots: int, widths: Iterable[int], *, guesses: bool = False) -> tuple[Bucket, ...]:
    """Powers of two of sequences up to `num_slots` for each width, as MAX_ROWS allows; most rows first.

    Where one row alone would be left of several widths, PAIR is there too: without any draft so many answers
    take three times as long as half of them.
    `guesses`: with a draft model, each width that has room for guesses is there a second time. With width 1
    among the widths, every slot's next token fits one pass: `num_slots` is at most MAX_ROWS.
    """
    counts = [1 << power for power in range(num_slots.bit_length()) if 1 << power < num_slots] + [num_slots]
    kinds = [(width, False) for width in widths]
    kinds += [(width, True) for width, _ in kinds if guesses and width > 1]
    made = [
        Bucket(count, width, guessing)
        for width, guessing in kinds
        for count in counts
        if count * width <= MAX_ROWS
    ]
    drafting = [width for width, guessing in kinds if width > 1 and not guessing]
    for count in counts:
        if drafting and count * min(drafting) > MAX_ROWS >= count * PAIR:
            made += [Bucket(count, PAIR, guessing) for guessing in ((False, True) if guesses else (False,))]
    return tuple(sorted(made, key=lambda bucket: (-bucket.rows, -bucket.width)))


def graphs_for(num_slots: int, widths: Iterable[int], *, guesses: bool = False) -> tuple[Bucket, ...]:
    """Those of `buckets_for` that are worth a graph: each takes a part of the start.

    Where a draft model guesses copies are few, and long: so many sequences of them have the widest alone.
    """
    made = buckets_for(num_slots, widths, guesses=guesses)
    widest = {bucket.sequences: bucket.width for bucket in sorted(made, key=lambda bucket: bucket.width)}
    return tuple(
        bucket
        for bucket in made
        if not guesses or bucket.guesses or bucket.width in (1, widest[bucket.sequences])
    )


def smallest(
    buckets: Sequence[Bucket], *, sequences: int, width: int, guesses: bool = False
) -> Bucket | None:
    """The bucket with fewest rows that has room; of equal ones the narrower. None where there is none."""
    fitting = [
        bucket
        for bucket in buckets
        if bucket.sequences >= sequences and bucket.width >= width and bucket.guesses == guesses
    ]
    return min(fitting, key=lambda bucket: (bucket.rows, bucket.width), default=None)
