"""Which requests cannot end before their deadline, as soon as that is certain. Knows no torch, no clock."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from sparkle.engine.request import Request, RequestState


def late_of(
    requests: Iterable[Request],
    cached_tokens: Callable[[Request], int],
    *,
    passes_s: Callable[[int], float],
    now_s: float,
) -> list[Request]:
    """Those whose prompt cannot be read before their deadline; an answer may be as short as one token.

    `cached_tokens`: what one that waits would not have to read; it is asked for those alone that would be
    late without. `passes_s`: what reading so many tokens takes at least.
    """

    def is_late(request: Request, tokens: int) -> bool:
        return now_s + passes_s(tokens) >= request.deadline_s

    late = [request for request in requests if is_late(request, request.unread_tokens)]
    return [
        request
        for request in late
        if request.state is not RequestState.WAITING
        or is_late(request, request.unread_tokens - cached_tokens(request))
    ]
