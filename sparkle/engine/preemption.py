"""Who gives way to a shorter class that waits, where no slot or no memory is free. Knows no torch, no pool.

1. For whom: the shortest that waits, once it has waited a quarter of its class's target. Until then one of
   those that run may end.
2. Who: only requests of longer classes, the longest first, of those the one that came last; as many as it
   takes, counting the pages that nobody else holds, and none in vain.
3. Not more than twice; not one that is nearly done; and not the overdue one whose prompt is being read.

What it had is a checkpoint then, as if it had ended. When it is its turn again it goes on from there, or
reads again what has left meanwhile. The time is given to it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection

from sparkle.engine.order import first_overdue
from sparkle.engine.request import Request, RequestState
from sparkle.schemas.priority import target_s

WAIT_SHARE = 0.25
"""Of its target: so long a request waits for the end of another one."""
MOST_PREEMPTIONS = 2
NEARLY_DONE_TOKENS = 64
"""An answer that can have no more than so many further tokens is written to its end."""


def giving_way(
    running: Collection[Request], to: Request, pages: int, holders: Callable[[int], int], now_s: float
) -> list[Request]:
    """Those that give way to this one, so many that nobody holds `pages` more; none where all are not enough.

    `pages`: 0 or less where it lacks a slot alone, for which one gives way; `holders`: how many hold a page.
    """
    if now_s < to.arrived_s + WAIT_SHARE * target_s(to.priority):
        return []
    read_first = first_overdue([one for one in running if one.state is RequestState.READING], now_s)
    willing = [one for one in running if one.priority > to.priority and one is not read_first and _may(one)]
    # most often it is all of theirs that is not enough, and that is seen without a look at each page
    if sum(len(one.pages) for one in willing) < pages:
        return []
    leaving: list[Request] = []
    left: Counter[int] = Counter()
    for one in sorted(willing, key=lambda one: (one.priority, one.arrival), reverse=True):
        leaving.append(one)
        left.update(one.pages)
        pages -= sum(left[page] == holders(page) for page in one.pages)
        if pages <= 0:
            return leaving
    return []


def _may(request: Request) -> bool:
    left = request.max_answer_tokens - len(request.answer)
    return request.preemptions < MOST_PREEMPTIONS and left > NEARLY_DONE_TOKENS
