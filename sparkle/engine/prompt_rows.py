"""How many rows of a pass read prompts, and whose: fewer while others wait for its end. Knows no torch.

A pass ends when all of its rows are computed. Each answer being written waits for that with its next token,
and each prompt that ends in the pass with its first one.

1. Where nobody waits, prompts get all rows there are.
2. Beside answers they get a chunk.
3. A long prompt, of more than an eighth of a chunk, gets an eighth beside answers of shorter classes and
   behind prompts that end in the pass. Where those are more than 8 it gets a sixteenth, where more than 16 a
   thirty-second: so what they wait for it, all together, stays about the same.
4. Shortest first, as `order.py` has it. But the overdue one that came first keeps a thirty-second of a chunk.
   When it has waited twice its class's target it keeps half of one, and all others together get a quarter: so
   whatever arrives it is read at half speed, and four times the target is enough for it.

The time is given to it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from sparkle.engine.order import by_unread, first_overdue
from sparkle.engine.request import Request
from sparkle.schemas.priority import PriorityClass, target_s

SHORT_SHARE = 8
"""Of a chunk: what a long prompt gets beside shorter ones, and what is long."""
LEAST_SHARE = 32
"""Of a chunk: less would hardly make a pass shorter, whose weights are read once more for it."""
URGENT_SHARE = 2
"""Of a chunk: what a prompt keeps that has waited twice its target."""
BESIDE_URGENT_SHARE = 4
"""Of a chunk: what all others get then."""


@dataclass(frozen=True, slots=True)
class PromptRows:
    """Shares out the rows of one pass after another."""

    chunk_tokens: int
    """Rows of prompts beside answers, at least one."""

    def share(
        self, reading: Sequence[Request], decoding: Sequence[Request], rows: int, now_s: float
    ) -> list[tuple[Request, int]]:
        """Which prompts are read in a pass that has so many rows for them, and how much, shortest first."""
        overdue = first_overdue(reading, now_s)
        urgent = overdue is not None and _is_urgent(overdue, now_s)
        kept = 0 if overdue is None else min(self._kept(overdue, urgent=urgent), rows - rows // 2)
        answers = Counter(request.priority for request in decoding)
        used, ending = kept, 0
        shared: list[tuple[Request, int]] = []
        for request in sorted(reading, key=by_unread):
            own = kept if request is overdue else 0
            most = min(rows, self._most(request, answers, ending) or rows)
            if urgent and request is not overdue:
                most = min(most, kept + self._part(BESIDE_URGENT_SHARE))
            more = max(0, min(request.next_tokens - own, most - used))
            used += more
            if own + more:
                shared.append((request, own + more))
            ending += own + more == request.unread_tokens
        return shared

    def _most(self, request: Request, answers: Counter[PriorityClass], ending: int) -> int | None:
        """Rows of prompts in a pass that reads this one, behind `ending` that end in it; None is any."""
        shorter = ending + sum(count for of, count in answers.items() if of < request.priority)
        if shorter and request.unread_tokens > self._part(SHORT_SHARE):
            waiting = 1 << (shorter - 1).bit_length()
            return self._part(min(max(waiting, SHORT_SHARE), LEAST_SHARE))
        return self.chunk_tokens if answers or ending else None

    def _kept(self, overdue: Request, *, urgent: bool) -> int:
        return min(overdue.next_tokens, self._part(URGENT_SHARE if urgent else LEAST_SHARE))

    def _part(self, share: int) -> int:
        return max(1, self.chunk_tokens // share)


def _is_urgent(request: Request, now_s: float) -> bool:
    return now_s >= request.arrived_s + 2 * target_s(request.priority)
