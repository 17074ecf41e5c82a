"""What a pass of each bucket takes: measured at the start where that is quick, and learned from every pass.

Knows no torch and no clock.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from sparkle.engine.buckets import PAIR, Bucket, smallest

ROW_SHARE = 0.05
"""What a row adds to a pass without any, until passes are measured: about that of sparkle-tiny on a CPU."""
PACE_SHARE = 0.2
"""Of what a pass took beyond the expected: laid to all buckets alike, to long contexts or a busy machine."""
BUCKET_SHARE = 0.02
"""Laid to its own bucket, once that is known well; little, so that a change of pace moves no choice."""
MEASURED_PASSES = 8
"""Passes that a measurement at the start is worth."""
FURTHEST = math.log(1.5)
"""A pass that took longer than this many times the expected was held up: no more of it is believed."""


class PassCosts:
    """A `width.Costs`: the time of a bucket, times a pace that all buckets share.

    Widths are compared at one pace, so that what makes every pass slower favours none of them.
    """

    def __init__(self, buckets: Sequence[Bucket], measured_ms: Mapping[Bucket, float]) -> None:
        """`measured_ms`: of every bucket, what it took at the start; or empty, then all is learned."""
        self._buckets = buckets
        self._plain = max((one for one in buckets if one.width == 1), key=lambda one: one.sequences)
        self._passes = dict.fromkeys(buckets, MEASURED_PASSES if measured_ms else 0)
        # looked up many times a pass
        self._found: dict[tuple[int, int, bool], Bucket] = {}
        self._widths: dict[int, list[int]] = {}
        # times are kept as their logarithms
        self._expected = {one: math.log(measured_ms.get(one, 1 + ROW_SHARE * one.rows)) for one in buckets}
        # without measurements the first pass tells how long a unit of these is
        self._pace: float | None = 0.0 if measured_ms else None

    def widths(self, sequences: int) -> Sequence[int]:
        """The widths there are for so many sequences, ascending from 1; only that where they are too many."""
        if sequences not in self._widths:
            found = {bucket.width for bucket in self._buckets if bucket.sequences >= sequences}
            if found - {1, PAIR}:
                # it is for more sequences than these
                found.discard(PAIR)
            self._widths[sequences] = sorted({1} | found)
        return self._widths[sequences]

    def ms(self, sequences: int, width: int, *, guesses: bool) -> float:
        """Of a pass of so many sequences, the widest of so many rows; `guesses`: with the draft model's."""
        return math.exp(self._expected[self._bucket(sequences, width, guesses)] + (self._pace or 0.0))

    def took(self, sequences: int, width: int, took_ms: float, *, guesses: bool) -> None:
        """A pass of nothing but so many sequences' next tokens and drafts took so long."""
        bucket = self._bucket(sequences, width, guesses)
        off = math.log(took_ms) - self._expected[bucket]
        if self._pace is None:
            self._pace = off
        off = max(-FURTHEST, min(off - self._pace, FURTHEST))
        self._passes[bucket] += 1
        share = max(1 / (1 + self._passes[bucket]), BUCKET_SHARE)
        self._expected[bucket] += share * off
        self._pace += (1 - share) * PACE_SHARE * off

    def _bucket(self, sequences: int, width: int, guesses: bool) -> Bucket:
        shape = sequences, width, guesses
        if shape not in self._found:
            found = smallest(self._buckets, sequences=sequences, width=width, guesses=guesses)
            self._found[shape] = found or self._plain
        return self._found[shape]
