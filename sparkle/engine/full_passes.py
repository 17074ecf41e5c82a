"""What a full pass takes at least, learned from those that were run. Knows no torch and no clock."""

from __future__ import annotations

import math

from sparkle.engine.plan import PassPlan

SEEN_PASSES = 4
"""Full passes until the shortest is believed: the first ones may be slower than any later one."""


class FullPasses:
    """Remembers the shortest of those that read the beginnings of prompts, where no row sees many keys.

    Any other pass says nothing: deep in a prompt it takes longer, and with fewer rows less, or more a row.
    """

    def __init__(self, pass_tokens: int) -> None:
        """`pass_tokens`: rows of a full pass."""
        self._pass_tokens = pass_tokens
        self._seen = 0
        self._shortest_s = math.inf

    @property
    def shortest_s(self) -> float:
        """What none of them took less than; 0 until enough were seen."""
        return self._shortest_s if self._seen >= SEEN_PASSES else 0.0

    def passed(self, plan: PassPlan, took_s: float) -> None:
        """This pass took so long."""
        if plan.num_tokens >= self._pass_tokens and not any(span.start for span in plan.spans):
            self._seen += 1
            self._shortest_s = min(self._shortest_s, took_s)
