"""Who goes first: which waiting request gets the next slot, and whose prompt a pass reads.

1. Shortest first. The work of one that waits is its class, then its prompt; of one being read, the unread.
2. Prompts are equals where their lengths have the same power of two: there the earlier deadline goes first,
   then the earlier round (`rounds.py`: tenants take turns), then the earlier arrival.
3. Aging. A request whose prompt is not read when its class's target has passed is overdue. The one of these
   that came first gets the next slot, and half of every pass's rows for prompts until it is read.
4. So whatever comes later, an overdue request is read at half speed at least; and a short question beside it
   finds the other half.

Knows no torch, and no clock: the time is given to it.
"""

from __future__ import annotations

from collections.abc import Sequence

from sparkle.engine.request import Request
from sparkle.schemas.priority import target_s


def is_overdue(request: Request, now_s: float) -> bool:
    """Whether its class's target has passed."""
    return now_s >= request.arrived_s + target_s(request.priority)


def next_admitted(waiting: Sequence[Request], now_s: float) -> Request:
    """Of those that wait, at least one: whose turn it is."""
    return _first_overdue(waiting, now_s) or min(waiting, key=_least_work)


def prompt_rows(reading: Sequence[Request], rows: int, now_s: float) -> list[tuple[Request, int]]:
    """Shares the rows that a pass has for prompts out: those that get any, in their order."""
    overdue = _first_overdue(reading, now_s)
    kept = 0 if overdue is None else min(overdue.unread_tokens, rows - rows // 2)
    rows -= kept
    shared: list[tuple[Request, int]] = []
    for request in sorted(reading, key=_least_unread):
        own = kept if request is overdue else 0
        more = min(request.unread_tokens - own, rows)
        rows -= more
        if own + more:
            shared.append((request, own + more))
    return shared


def _first_overdue(requests: Sequence[Request], now_s: float) -> Request | None:
    overdue = (request for request in requests if is_overdue(request, now_s))
    return min(overdue, key=lambda request: request.arrival, default=None)


def _least_work(request: Request) -> tuple[str, int, float, int, int]:
    return request.priority, *_least_unread(request)


def _least_unread(request: Request) -> tuple[int, float, int, int]:
    return request.unread_tokens.bit_length(), request.deadline_s, request.round, request.arrival
