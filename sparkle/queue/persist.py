"""Does a step with the queue until it is done, while the server is away or full. Knows no job."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import ParamSpec, TypeVar

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, wait_random_exponential

from sparkle.errors import QueueError

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

_FIRST_WAIT_S = 0.1
_MAX_WAIT_S = 5.0


async def persist(step: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
    """What `step` returns, tried with growing pauses for as long as it raises QueueError.

    It ends otherwise only by another error or by cancellation: whoever holds a lease holds it until then.
    """
    name = step.__name__

    async def once() -> T:
        return await step(*args, **kwargs)

    def tell(state: RetryCallState) -> None:
        # once a change of state, not once a try
        if state.attempt_number == 1 and state.outcome is not None:
            error = type(state.outcome.exception()).__name__
            log.warning("queue_step_failing", extra={"step": name, "error": error})

    retrying = AsyncRetrying(
        retry=retry_if_exception_type(QueueError),
        wait=wait_random_exponential(multiplier=_FIRST_WAIT_S, max=_MAX_WAIT_S),
        before_sleep=tell,
    )
    done: T = await retrying(once)
    tries: int = retrying.statistics.get("attempt_number", 1)
    if tries > 1:
        log.info("queue_step_done", extra={"step": name, "tries": tries})
    return done
