"""From spans to the rows of a pass: which token stands where, and where it is kept. Knows no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from sparkle.engine.plan import Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """The rows of some spans, one span after another."""

    token_ids: list[int]
    positions: list[int]
    """Of each row in its sequence."""

    cells: list[int]
    """Of each row: page · page_tokens + place in the page."""

    span_starts: list[int]
    """One more than there are spans, from 0."""

    slots: list[int]
    contexts: list[int]
    """Of each span: tokens before it."""


def rows_of(spans: Sequence[Span], *, page_tokens: int) -> Rows:
    """The rows of `spans`, whose pages must reach."""
    places = [(span, place) for span in spans for place in range(span.start, span.start + len(span.tokens))]
    return Rows(
        token_ids=[token for span in spans for token in span.tokens],
        positions=[place for _, place in places],
        cells=[
            span.pages[place // page_tokens] * page_tokens + place % page_tokens for span, place in places
        ],
        span_starts=[0, *accumulate(len(span.tokens) for span in spans)],
        slots=[span.slot for span in spans],
        contexts=[span.start for span in spans],
    )


def wanted_rows(spans: Sequence[Span], span_starts: Sequence[int]) -> list[int]:
    """The rows that tokens are drawn behind: the last of each span that draws, and of a draft all."""
    return [
        row
        for span, end in zip(spans, span_starts[1:], strict=True)
        if span.draws
        for row in range(end - 1 - len(span.draft), end)
    ]


def following_rows(spans: Sequence[Span], drawn: Mapping[str, Sequence[int]]) -> list[int]:
    """Of each row the token behind it: the request's own, or of `drawn`, by request; -1 for none."""
    found: list[int] = []
    for span in spans:
        known = len(span.tokens) - len(span.draft)
        found += span.tokens[1:known]
        if span.draws:
            tokens = drawn.get(span.request, ())
            found += [*tokens, *[-1] * (1 + len(span.draft) - len(tokens))]
        else:
            found.append(-1 if span.following is None else span.following)
    return found


def kept_rows(spans: Sequence[Span], drawn: Mapping[str, Sequence[int]]) -> list[int]:
    """Of each span how many rows stay: of those that `drawn`, by request, follow, and of the others all."""
    return [
        len(span.tokens) - (1 + len(span.draft) - len(drawn.get(span.request, ())) if span.draws else 0)
        for span in spans
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPieces:
    """The rows of some spans in short runs, none across two spans."""

    starts: list[int]
    """One more than there are runs, from 0."""

    contexts: list[int]
    """Of each run: tokens of its sequence before it."""

    slots: list[int]
    """Of each run: its sequence's slot."""


def pieces_of(rows: Rows, *, width: int) -> RowPieces:
    """`rows` in runs of at most `width`."""
    starts, contexts, slots = [0], list[int](), list[int]()
    for (start, stop), context, slot in zip(
        pairwise(rows.span_starts), rows.contexts, rows.slots, strict=True
    ):
        for first in range(start, stop, width):
            starts.append(min(first + width, stop))
            contexts.append(context + first - start)
            slots.append(slot)
    return RowPieces(starts=starts, contexts=contexts, slots=slots)
