"""Which models are served, and which one a request means. Knows no key and no HTTP but its faults."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from sparkle.producers.gateway.access import Principal
from sparkle.producers.gateway.faults import RETRY_S, ApiFault
from sparkle.schemas.control import Heartbeat

MAX_SEEN = 64
"""Names that are remembered; of one model there is one."""


class Roster(Protocol):
    """The workers that are there."""

    def workers(self) -> Sequence[Heartbeat]:
        """The last sign of life of each."""
        ...


class ServedModels:
    """The names in the region's heartbeats, and those that the settings say."""

    def __init__(self, roster: Roster, always: Sequence[str]) -> None:
        """`always` are names that are served whether a worker says so or not."""
        self._roster = roster
        self._always = tuple(always)
        self._seen: dict[str, None] = {}

    def names(self, principal: Principal) -> list[str]:
        """What is served now, as far as this key may ask for it."""
        # a worker that is starting has no model yet
        named = (worker.model for worker in self._roster.workers() if worker.model)
        served = [*self._always, *named]
        for name in served[: MAX_SEEN - len(self._seen)]:
            self._seen.setdefault(name)
        return [name for name in dict.fromkeys(served) if not principal.models or name in principal.models]

    def choose(self, asked: str | None, principal: Principal) -> str:
        """The model of a request. Raises ApiFault for one that is not served, by its name.

        One whose workers have all gone is still known: its jobs wait for the next.
        """
        served = self.names(principal)
        if asked is None:
            asked = next(iter((*principal.models, *served)), None)
        known = asked in served or (
            asked in self._seen and (not principal.models or asked in principal.models)
        )
        if asked is not None and known:
            return asked
        if not self._seen:
            message = "no worker has been heard of yet; try again"
            raise ApiFault(503, "no_worker", message, headers={"Retry-After": str(RETRY_S)})
        there = ", ".join(served) or "none"
        message = f"the model `{asked}` is not served for this key; served: {there}"
        raise ApiFault(404, "model_not_found", message, "model")
