"""One pull request and how it ended: the server's status lines, read in one place. Knows no connection."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from enum import StrEnum

from sparkle.queue.envelope import Envelope
from sparkle.schemas.priority import PriorityClass

_NS_PER_S = 1_000_000_000


class PullEnd(StrEnum):
    """How a pull request ended."""

    FILLED = "filled"  #: all jobs asked for have come
    EMPTY = "empty"  #: no more jobs, or none within its time
    MOVED = "moved"  #: the consumer has a new leader, or the server goes: ask again
    MISSING = "missing"  #: there is no such consumer
    REFUSED = "refused"  #: the server did not take the request
    LOST = "lost"  #: no answer in time


HEALTHY = frozenset({PullEnd.FILLED, PullEnd.EMPTY})


@dataclass(eq=False, slots=True)
class Pull:
    """A request for up to `batch` jobs of one class."""

    priority: PriorityClass
    inbox: str
    """Where its statuses come to; the jobs themselves come under their own subjects."""

    batch: int
    expires_s: float = 0.0
    """How long the server waits for a job; 0 answers at once."""

    got: int = 0
    ended: asyncio.Future[PullEnd] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def body(self) -> bytes:
        """The request, in the server's JSON."""
        if self.expires_s:
            return json.dumps({"batch": self.batch, "expires": int(self.expires_s * _NS_PER_S)}).encode()
        return json.dumps({"batch": self.batch, "no_wait": True}).encode()

    def take(self) -> None:
        """One of its jobs has come."""
        self.got += 1
        if self.got >= self.batch:
            self.end(PullEnd.FILLED)

    def end(self, how: PullEnd) -> None:
        """It ends; only the first end counts."""
        if not self.ended.done():
            self.ended.set_result(how)


def read_status(envelope: Envelope) -> PullEnd | None:
    """How the request ended that this status answers; None when it goes on."""
    reason = envelope.reason.lower()
    match envelope.status:
        case "404" | "408":
            return PullEnd.EMPTY
        case "503":
            return PullEnd.MISSING
        case "409" if "consumer deleted" in reason:
            return PullEnd.MISSING
        case "409" if "leadership change" in reason or "server shutdown" in reason:
            return PullEnd.MOVED
        case "100":
            return None
        case _:
            return PullEnd.REFUSED
