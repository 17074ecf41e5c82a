"""Who goes first: which waiting request gets the next slot, and which prompt is read before another.

1. Shortest first. The work of one that waits is its class, then its prompt; of one being read, the unread.
2. Prompts are equals where their lengths have the same power of two: there the earlier deadline goes first,
   then the earlier round (`rounds.py`: tenants take turns), then the earlier arrival.
3. Aging. A request whose prompt is not read when its class's target has passed is overdue. The one of these
   that came first gets the next slot (`waiting.py`), and `prompt_rows.py` keeps rows for it.

Knows no torch, and no clock: the time is given to it.
"""

from __future__ import annotations

from collections.abc import Sequence

from sparkle.engine.request import Request
from sparkle.schemas.priority import target_s


def is_overdue(request: Request, now_s: float) -> bool:
    """Whether its class's target has passed."""
    return now_s >= request.arrived_s + target_s(request.priority)


def first_overdue(requests: Sequence[Request], now_s: float) -> Request | None:
    """Of those that are overdue the one that came first, if any is."""
    overdue = (request for request in requests if is_overdue(request, now_s))
    return min(overdue, key=lambda request: request.arrival, default=None)


def by_work(request: Request) -> tuple[str, int, float, int, int]:
    """The order of those that wait, none overdue: the first one is the shortest."""
    return request.priority, *_by_length(request, len(request.prompt))


def by_unread(request: Request) -> tuple[int, float, int, int]:
    """The order of prompts that are read, none overdue: the first one has the least."""
    return _by_length(request, request.unread_tokens)


def _by_length(request: Request, tokens: int) -> tuple[int, float, int, int]:
    return tokens.bit_length(), request.deadline_s, request.round, request.arrival
