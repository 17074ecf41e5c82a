"""How many rows of a pass read prompts, and whose: fewer while others wait for its end. Knows no torch.

A pass ends when all of its rows are computed. Each answer being written waits for that with its next token,
and each prompt that ends in the pass with its first one.

1. Where nobody waits, prompts get all rows there are.
2. Beside answers they get a chunk; two where no other class but theirs was here for a while, and it is not
   the shortest, as long as no row has many keys to see. What a long prompt leaves of that goes to prompts
   that could end in it: no other is cut short.
3. A long prompt, of more than an eighth of a chunk, gets an eighth a pass beside answers of shorter classes
   and behind prompts that end in the pass; a sixteenth where those are more than 8, nothing where more than
   16. That is saved up until it is half a chunk: a few rows deep in a prompt take as long as many.
4. Shortest first, as `order.py` has it. But of the long ones it is the overdue one that came first which gets
   what is saved up, and a thirty-second a pass at least.
5. When that one has waited twice its class's target it keeps half a chunk in every pass, and all others
   together get a quarter: whatever arrives it is read at half speed, and four times the target is enough.

The time is given to it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from sparkle.engine.order import by_unread, first_overdue
from sparkle.engine.request import Request
from sparkle.schemas.priority import PriorityClass, target_s

SHORT_SHARE = 8
"""Of a chunk: what a long prompt gets a pass beside shorter ones, and what is long."""
LEAST_SHARE = 16
"""The same beside many; beside more than so many it gets nothing."""
OVERDUE_SHARE = 32
"""Of a chunk: what an overdue one gets a pass at least."""
SAVED_SHARE = 2
"""Of a chunk: what is saved up, and what a prompt keeps that has waited twice its target."""
BESIDE_URGENT_SHARE = 4
"""Of a chunk: what all others get then."""
QUIET_CHUNKS = 2
"""What prompts get beside answers where nobody else is likely to come meanwhile."""
DEEP_TOKENS = 32_768
"""From here on a row takes half as long again as at the beginning of a prompt, and more."""
QUIET_S = 8.0
"""So long no other class was here: then the next one of it waits for one such pass, not for many."""


class PromptRows:
    """Shares out the rows of one pass after another."""

    def __init__(self, chunk_tokens: int) -> None:
        """`chunk_tokens`: rows of prompts beside answers, at least one."""
        self.chunk_tokens = chunk_tokens
        self._saved = 0
        self._seen_s: dict[PriorityClass, float] = {}

    def share(
        self, reading: Sequence[Request], decoding: Sequence[Request], rows: int, now_s: float
    ) -> list[tuple[Request, int]]:
        """Which prompts are read in a pass that has so many rows for them, and how much, shortest first."""
        overdue = first_overdue(reading, now_s)
        urgent = overdue if overdue is not None and _is_urgent(overdue, now_s) else None
        kept = 0 if urgent is None else min(urgent.next_tokens, self._part(SAVED_SHARE), rows - rows // 2)
        beside = self._beside_answers(reading, decoding, now_s)
        answers = Counter(request.priority for request in decoding)
        favoured = overdue if overdue is not None and self._is_long(overdue) else None
        used, ending, is_cut = kept, 0, False
        shared: list[tuple[Request, int]] = []
        for request in sorted(reading, key=by_unread):
            own = kept if request is urgent else 0
            shorter = ending + sum(count for of, count in answers.items() if of < request.priority)
            if shorter and self._is_long(request):
                # one gets what is saved up
                favoured = favoured or request
                room = max(0, self.chunk_tokens - used) if request is favoured else 0
                most = used + (self._saved_up(shorter, room, request is overdue) if room else 0)
            else:
                limit = beside if request.computed < DEEP_TOKENS else self.chunk_tokens
                most = limit if answers or ending else rows
                if is_cut and request is not urgent and request.unread_tokens > min(most, rows) - used:
                    most = used
                if self._is_long(request):
                    # nothing is owed to who is not kept back
                    is_cut, self._saved = True, 0
            if urgent is not None and request is not urgent:
                most = min(most, kept + self._part(BESIDE_URGENT_SHARE))
            more = max(0, min(request.next_tokens - own, min(most, rows) - used))
            used += more
            if own + more:
                shared.append((request, own + more))
            ending += own + more == request.unread_tokens
        return shared

    def _beside_answers(self, reading: Sequence[Request], decoding: Sequence[Request], now_s: float) -> int:
        """Rows of prompts that the answers of a pass wait for."""
        self._seen_s |= dict.fromkeys((request.priority for request in (*reading, *decoding)), now_s)
        here = [priority for priority, seen_s in self._seen_s.items() if now_s - seen_s < QUIET_S]
        is_quiet = len(here) == 1 and here != [PriorityClass.P0]
        return self.chunk_tokens * (QUIET_CHUNKS if is_quiet else 1)

    def _saved_up(self, shorter: int, room: int, is_overdue: bool) -> int:
        """Rows for a long prompt beside so many shorter ones, at most `room`, or none yet."""
        waiting = 1 << (shorter - 1).bit_length()
        if waiting <= LEAST_SHARE:
            self._saved += self._part(max(waiting, SHORT_SHARE))
        elif is_overdue:
            self._saved += self._part(OVERDUE_SHARE)
        self._saved = min(self._saved, self.chunk_tokens)
        least = self._part(SAVED_SHARE)
        # whole parts: chunks of a few lengths are attended to faster
        granted = min(self._saved, room) // least * least
        self._saved -= granted
        return granted

    def _is_long(self, request: Request) -> bool:
        return request.unread_tokens > self._part(SHORT_SHARE)

    def _part(self, share: int) -> int:
        return max(1, self.chunk_tokens // share)


def _is_urgent(request: Request, now_s: float) -> bool:
    return now_s >= request.arrived_s + 2 * target_s(request.priority)
