"""After a lost connection: which jobs some worker still runs, as its heartbeats say. Knows no outbox."""

from __future__ import annotations

from collections.abc import Iterable

from sparkle.queue.connection import Connection
from sparkle.queue.control import WorkerRoster


class LossWatch:
    """Hears heartbeats as long as a job is open that was open when the connection was lost.

    A queue that lost its streams takes a running job a second time, so only its worker can tell that it runs.
    At other times the queue itself refuses the double, and nobody has to listen to all workers.
    """

    def __init__(self, connection: Connection, region: str) -> None:
        self._roster = WorkerRoster(connection, region)
        self._unsure: set[str] = set()

    async def begin(self, jobs: Iterable[str]) -> None:
        """The connection is back and these jobs are open. Raises NotConnected."""
        listening = bool(self._unsure)
        self._unsure.update(jobs)
        if self._unsure and not listening:
            await self._roster.start()

    async def forget(self, job: str) -> None:
        """The job has its end; after the last one nothing is heard any more."""
        if job in self._unsure:
            self._unsure.remove(job)
            if not self._unsure:
                await self._roster.stop()

    def runs(self, job: str) -> bool:
        """Whether a worker has said so a short while ago; False for jobs that are not watched."""
        return job in self._unsure and any(job in worker.running for worker in self._roster.workers())
