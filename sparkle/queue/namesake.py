"""Hears, while a worker starts, whether another process serves under its name already. Knows no engine."""

from __future__ import annotations

import asyncio

from sparkle.errors import ConfigError
from sparkle.queue.connection import Connection, Envelope
from sparkle.schemas import subjects
from sparkle.schemas.codec import decode
from sparkle.schemas.control import Heartbeat, WorkerState


class Namesake:
    """A ready worker's heartbeat under the name of one that is not ready yet is another process's.

    One that drains hands its name on. Two that start in the same moment are told apart once one of them is
    ready; both would take what is offered to the name, and each end the other's jobs.
    """

    def __init__(self, connection: Connection, region: str, worker: str) -> None:
        self.heard = asyncio.Event()
        """Set once there is one."""
        self._connection = connection
        self._region = region
        self._worker = worker

    async def listen(self) -> None:
        """Hear from now on. Raises NotConnected."""
        subject = subjects.heartbeat(self._region, self._worker)
        self._subscription = await self._connection.subscribe(subject, self._take)

    async def stop(self) -> None:
        """Hear no more: the worker is about to be ready itself."""
        await self._subscription.stop()

    def require_none(self) -> None:
        """Raises ConfigError where one was heard."""
        if self.heard.is_set():
            raise ConfigError(
                f"name: a worker named {self._worker} serves region {self._region} already; "
                "give this one another --name, or end that one with `sparkle worker drain`"
            )

    async def _take(self, envelope: Envelope) -> None:
        if decode(envelope.payload, Heartbeat).state is WorkerState.READY:
            self.heard.set()
