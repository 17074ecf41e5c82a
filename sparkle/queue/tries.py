"""How the queue tries again: with jitter, for a bounded time, never on a closed connection."""

from __future__ import annotations

from tenacity import AsyncRetrying, retry_if_exception, stop_after_delay, wait_random

from sparkle.errors import NotConnected, PublishUncertain, SparkleError
from sparkle.queue.connection import Connection

_MIN_WAIT_S = 0.05
_MAX_WAIT_S = 0.25


def tries(connection: Connection, *also: type[SparkleError], give_up_s: float) -> AsyncRetrying:
    """Tries after PublishUncertain, NotConnected and the errors named `also`; the last error is raised."""
    kinds: tuple[type[SparkleError], ...] = (PublishUncertain, NotConnected, *also)

    def again(error: BaseException) -> bool:
        return isinstance(error, kinds) and not connection.closed.is_set()

    return AsyncRetrying(
        retry=retry_if_exception(again),
        wait=wait_random(_MIN_WAIT_S, _MAX_WAIT_S),
        stop=stop_after_delay(give_up_s),
        reraise=True,
    )
