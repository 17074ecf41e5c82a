"""Which rows of a pass tokens are drawn behind, and how, for the device to do it. Knows no logits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sparkle.engine.draw_state import DrawState
from sparkle.engine.plan import Span

NARROW = 64
"""Tokens to draw from that are found fast; more take much longer."""
NOT_DRAWN = (1.0, 1.0, 0.0, 0.0, 0.0)
"""Settings of a row that the device draws nothing behind."""

Columns = Sequence[Sequence[float]]
"""Of some rows temperature, top_p, min_p, the uniform number and the width: a list each."""


def drawn_on_device(state: DrawState, vocab_size: int) -> bool:
    """Whether a row of logits, and a mask, are enough for this request's next token, drawn from few: no sum
    over others."""
    plain = state.seen is None and state.sampling.logprobs is None
    return plain and width_of(state, vocab_size) <= NARROW


def width_of(state: DrawState, vocab_size: int) -> int:
    """Tokens to draw from; temperature 0 is top_k 1."""
    return 1 if state.greedy else min(state.sampling.top_k or vocab_size, vocab_size)


def columns_of(state: DrawState, chances: Sequence[float], vocab_size: int) -> Columns:
    """Of rows that the request draws with these uniform numbers."""
    sampling, rows = state.sampling, len(chances)
    return [
        [sampling.temperature or 1.0] * rows,
        [sampling.top_p] * rows,
        [sampling.min_p] * rows,
        [*chances],
        [width_of(state, vocab_size)] * rows,
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnRows:
    """The rows of some spans that tokens are drawn behind."""

    firsts: list[int]
    """Of each span its first such row."""

    counts: list[int]
    """Of each span how many, 0 for none."""

    columns: Columns
    """Of each row; NOT_DRAWN where nothing is drawn, or not on the device."""

    draft_temperatures: list[float]
    """Of each span, for its guesses; 0 for the likeliest."""

    draft_chances: list[list[float]]
    """Of each span the uniform numbers of its guesses' places."""


NONE_OF_A_SPAN: Columns = ((),) * len(NOT_DRAWN)
NONE_DRAWN = DrawnRows(firsts=[], counts=[], columns=NONE_OF_A_SPAN, draft_temperatures=[], draft_chances=[])


def drawn_rows(
    spans: Sequence[Span], span_starts: Sequence[int], states: Mapping[str, DrawState], *, vocab_size: int
) -> DrawnRows:
    """Of spans that stand one behind the other; `states` has those that draw."""
    firsts, counts = list[int](), list[int]()
    columns: list[list[float]] = [[] for _ in NOT_DRAWN]
    temperatures, chances = list[float](), list[list[float]]()
    for span, stop in zip(spans, span_starts[1:], strict=True):
        count = 1 + len(span.draft) if span.draws else 0
        firsts.append(stop - count)
        counts.append(count)
        own, here = list[float](), NONE_OF_A_SPAN
        if count:
            state = states[span.request]
            own = state.chances(count)
            temperatures.append(state.sampling.temperature)
            if drawn_on_device(state, vocab_size):
                here = columns_of(state, own, vocab_size)
        else:
            temperatures.append(0.0)
        chances.append(own[:-1])
        others = len(span.tokens) - len(here[0])
        for column, filler, values in zip(columns, NOT_DRAWN, here, strict=True):
            if others:
                column += [filler] * others
            column += values
    return DrawnRows(
        firsts=firsts,
        counts=counts,
        columns=columns,
        draft_temperatures=temperatures,
        draft_chances=chances,
    )
