"""The jobs that run here now: each delivery starts one, frames and cancels find theirs. Knows no signals."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence

from sparkle.engine.frames import Accepted, CancelRequest, Delta, Failed, Finished
from sparkle.errors import InvalidMessage, QueueError
from sparkle.queue.delivery import Delivery
from sparkle.queue.lease import Lease
from sparkle.schemas.priority import PriorityClass
from sparkle.schemas.subjects import JobAddress
from sparkle.workers.job_run import JobRun
from sparkle.workers.station import Station

log = logging.getLogger(__name__)

_CLASH_DELAY_S = 1.0
_HAND_BACK_S = 5.0
_END_S = 1.0
"""Storing takes milliseconds; where the queue is away it would take for as long as that lasts."""


class RunningJobs:
    """Runs, by job id: no id runs twice at once in this worker."""

    def __init__(self, station: Station, *, on_begin: Callable[[], None], on_end: Callable[[], None]) -> None:
        self._station = station
        self._on_begin = on_begin
        self._on_end = on_end
        self._runs: dict[str, tuple[JobRun, asyncio.Task[None]]] = {}
        self._aside: set[asyncio.Task[None]] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    def __len__(self) -> int:
        return len(self._runs)

    @property
    def jobs(self) -> list[str]:
        """Ids of the jobs held now."""
        return list(self._runs)

    @property
    def leases(self) -> list[str]:
        """Where the fates of the jobs held now are told."""
        return [run.ack_subject for run, _ in self._runs.values()]

    def longer_than(self, priority: PriorityClass) -> int:
        """How many are of a longer class."""
        return sum(run.address.priority > priority for run, _ in self._runs.values())

    async def start(self, delivery: Delivery) -> None:
        """Run a delivered job beside the others; takes its slot and returns at once, as the puller asks."""
        lease = Lease(self._station.connection, delivery)
        try:
            address = lease.address
        except InvalidMessage:
            # no subject, so nobody can be told: only the log and the server's advisory show it
            log.error("job_unreadable_subject", extra={"attempt": delivery.attempt})
            self._end_aside(lease.term())
            return
        held = self._runs.get(address.job)
        if held is not None:
            log.warning(
                "job_delivered_while_running", extra={"job": address.job, "attempt": delivery.attempt}
            )
            # the same job again: one run, one lease, which speaks by the latest delivery; a job of this id
            # of another tenant, or in another class, waits its turn
            if held[0].address == address:
                held[0].delivered_again(delivery)
            else:
                self._end_aside(lease.nak(_CLASH_DELAY_S))
            return
        self._begin(address, lease)

    def _begin(self, address: JobAddress, lease: Lease) -> None:
        run = JobRun(self._station, lease, address)
        task = asyncio.create_task(run.run(), name="job-run")
        self._runs[address.job] = (run, task)
        self._idle.clear()
        self._station.metrics.busy.set(len(self._runs))
        task.add_done_callback(lambda done: self._ended(address.job, done))
        self._on_begin()

    def frame(self, frame: Accepted | Delta | Finished | Failed) -> None:
        """Give a frame to its job; one that has just ended here is ignored."""
        held = self._runs.get(frame.job)
        if held is not None:
            held[0].happen(frame)

    def cancel(self, tenant: str, job: str) -> None:
        """The producer no longer wants the job, if it runs here."""
        held = self._runs.get(job)
        if held is not None and held[0].address.tenant == tenant:
            held[0].happen(CancelRequest(job=job))

    async def wait_idle(self) -> None:
        """Return when no job runs."""
        await self._idle.wait()

    async def engine_ended(self) -> None:
        """Give jobs back to the queue: the engine has ended with them, or before it had them.

        Those whose end is being stored go on: handed back they would end without a usage record.
        """
        leaving = [(run, task) for run, task in self._runs.values() if not run.is_ending]
        for run, task in leaving:
            if not run.engine_ended():
                task.cancel()
        await _until_given_back([task for _, task in leaving])

    async def hand_back(self) -> None:
        """Give all running jobs back to the queue, at once; one whose end is being stored has time for that.

        Cut short it would be given back as well, and end without a usage record.
        """
        ending = [task for run, task in self._runs.values() if run.is_ending]
        tasks = [task for _, task in self._runs.values()]
        for task in {*tasks} - {*ending}:
            task.cancel()
        if ending:
            await asyncio.wait(ending, timeout=_END_S)
        for task in ending:
            task.cancel()
        await _until_given_back(tasks)

    def _ended(self, job: str, task: asyncio.Task[None]) -> None:
        del self._runs[job]
        self._station.metrics.busy.set(len(self._runs))
        if not self._runs:
            self._idle.set()
        if not task.cancelled() and task.exception() is not None:
            log.error("job_run_failed", extra={"job": job, "error": type(task.exception()).__name__})
        self._on_end()

    def _end_aside(self, fate: Coroutine[None, None, bool]) -> None:
        """Tell a fate without keeping the puller waiting."""

        async def tell() -> None:
            try:
                await fate
            except QueueError as error:
                log.warning("lease_fate_uncertain", extra={"error": type(error).__name__})

        task = asyncio.create_task(tell(), name="lease-fate")
        self._aside.add(task)
        task.add_done_callback(self._aside.discard)


async def _until_given_back(tasks: Sequence[asyncio.Task[None]]) -> None:
    if tasks:
        # without a server there is nobody to give them to: the queue finds out by itself
        await asyncio.wait(tasks, timeout=_HAND_BACK_S)
