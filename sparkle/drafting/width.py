"""How wide the drafts of a pass are: as wide as makes its answers fastest. Knows no model, no clock.

A pass takes what its bucket takes, so many sequences by the rows of the widest: a narrow draft beside a wide
one gains nothing. So one width is chosen for all of a pass, by what each takes and is expected to keep.

What is made greatest is the geometric mean, over the sequences, of the tokens kept a second. Where all draft
equally well that is the tokens a second of the pass. Where they do not, a wide pass makes some answers faster
and their neighbours slower, and soon the slow ones are all that is left: a set of answers ends soonest where
each sequence's own gain or loss weighs the same (`python -m bench.draft_widths` shows it).

Two budgets bound what drafts can cost. TRYING: now and then a pass is a width further than the best, for what
may have changed; what that is expected to lose is a share of the time. LOSING: what drafts kept is held
against the time they took. Where that is a loss, passes without drafts follow until it is a share of the time
again. So answers take no longer than without drafts by more than that share, whatever they are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from sparkle.drafting.acceptance import Acceptance
from sparkle.drafting.budget import Budget

PLAIN = 1
"""The width of a pass without drafts."""
TRYING_SHARE = 0.01
TRYING_PASSES = 1.0
"""Of TRYING what may be saved up."""
LOSING_SHARE = 0.02
LOSING_PASSES = 4.0
"""Of LOSING the same: drafts that pay on the whole keep nothing but one token several times in a row."""


class Costs(Protocol):
    """What passes take."""

    def widths(self, sequences: int) -> Sequence[int]:
        """The widths there are for so many sequences: ascending, PLAIN the first."""
        ...

    def ms(self, sequences: int, width: int, *, guesses: bool) -> float:
        """Of so many sequences, the widest of so many rows; `guesses`: with those of the draft model."""
        ...

    def took(self, sequences: int, width: int, took_ms: float, *, guesses: bool) -> None:
        """A pass of nothing but so many sequences' next tokens and drafts took so long."""
        ...


@dataclass(frozen=True, slots=True)
class _Choice:
    width: int

    passes: float
    """Its time, as a multiple of a pass without drafts."""

    speed: float
    """How much faster than without drafts its sequences are expected to be written, geometric mean."""


class WidthControl:
    """Chooses before each pass, and is told what came of it."""

    def __init__(self, costs: Costs, acceptance: Acceptance) -> None:
        self._costs = costs
        self._acceptance = acceptance
        self._trying = Budget(TRYING_SHARE, saved=TRYING_PASSES)
        self._losing = Budget(LOSING_SHARE, saved=LOSING_PASSES)

    def choose(self, sequences: int, offers: Mapping[str, Sequence[str]], *, guesses: bool) -> int:
        """Rows of each of a pass's `sequences`, at most: its last token and a draft. PLAIN drafts nothing.

        `offers`: of those that have a draft, who guessed each token of it; `guesses`: the draft model will.
        """
        choices = [
            choice
            for choice in self._choices(sequences, offers, guesses=guesses)
            if self._losing.pays_for(choice.passes - 1)
        ]
        best = max(choices, key=lambda choice: choice.speed)
        wider = next((choice for choice in choices if choice.width > best.width), None)
        if wider is not None:
            price = wider.passes * (1 - wider.speed / best.speed)
            if self._trying.pays_for(price):
                self._trying.spend(price)
                return wider.width
        return best.width

    def passed(
        self, sequences: int, width: int, *, guesses: bool, kept_tokens: int, took_ms: float | None
    ) -> None:
        """A pass with the next tokens of so many, the widest of so many rows, wrote so many tokens.

        `took_ms`: None where it read prompts too.
        """
        passes = self._passes(sequences, width, guesses=guesses)
        self._trying.earn(passes)
        self._losing.earn(passes)
        self._losing.spend(passes - kept_tokens / sequences)
        if took_ms is not None:
            self._costs.took(sequences, width, took_ms, guesses=guesses)

    def _passes(self, sequences: int, width: int, *, guesses: bool) -> float:
        """Its time as a multiple of a pass without drafts."""
        plain_ms = self._costs.ms(sequences, PLAIN, guesses=False)
        return self._costs.ms(sequences, width, guesses=guesses) / plain_ms

    def _choices(
        self, sequences: int, offers: Mapping[str, Sequence[str]], *, guesses: bool
    ) -> list[_Choice]:
        """Every width up to the first that has room for all drafts."""
        widths = self._costs.widths(sequences)
        longest = max(map(len, offers.values()), default=0)
        chances = [
            self._acceptance.chances(request, sources[: widths[-1] - 1])
            for request, sources in offers.items()
        ]
        found: list[_Choice] = []
        for width in widths:
            passes = self._passes(sequences, width, guesses=guesses and width > PLAIN)
            # one token is written in any case
            kept = sum(math.log1p(sum(chain[: width - 1])) for chain in chances) / sequences
            found.append(_Choice(width, passes, math.exp(kept) / passes))
            if width > longest:
                break
        return found
