"""How full a region's queue is and who works on it: counts, ages and ids, never a job's content."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Iterable
from dataclasses import dataclass

from sparkle.errors import TopologyMissing
from sparkle.queue.api import as_table, ask
from sparkle.queue.connection import Connection
from sparkle.queue.control import HEARTBEAT_S, WorkerRoster
from sparkle.queue.topology import consumer_state
from sparkle.schemas import subjects
from sparkle.schemas.control import Heartbeat
from sparkle.schemas.priority import PriorityClass


@dataclass(frozen=True, slots=True)
class ClassStatus:
    """One priority class."""

    priority: PriorityClass
    waiting: int
    """Jobs that no worker has."""

    running: int
    """Jobs that a worker has, or that were handed back and wait for their time."""

    oldest_s: float | None
    """Age of the oldest job, waiting or running, since its id was made; None without one."""


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """One region at one moment."""

    region: str
    classes: tuple[ClassStatus, ...]
    workers: tuple[Heartbeat, ...]


async def read_status(
    connection: Connection, region: str, *, listen_s: float = 1.25 * HEARTBEAT_S
) -> QueueStatus:
    """The region's status; hears heartbeats for `listen_s`, as a worker speaks every `HEARTBEAT_S`.

    For a display that goes on, start one WorkerRoster and call `read_classes` instead.
    Raises TopologyMissing, NotConnected.
    """
    roster = WorkerRoster(connection, region)
    await roster.start()
    try:
        await asyncio.sleep(listen_s)
        classes = await read_classes(connection, region)
    finally:
        await roster.stop()
    return QueueStatus(region, classes, tuple(roster.workers()))


async def read_classes(connection: Connection, region: str) -> tuple[ClassStatus, ...]:
    """Counts and ages of the five classes. Raises TopologyMissing, NotConnected."""
    states = [await consumer_state(connection, region, priority) for priority in PriorityClass]
    oldest = _oldest_ms(await _queued_subjects(connection, region))
    now_ms = time.time() * 1000
    return tuple(
        ClassStatus(
            priority=priority,
            waiting=state.waiting,
            running=state.running,
            oldest_s=max(0.0, (now_ms - oldest[priority]) / 1000) if priority in oldest else None,
        )
        for priority, state in zip(PriorityClass, states, strict=True)
    )


async def _queued_subjects(connection: Connection, region: str) -> Iterable[str]:
    """Subjects of the jobs in the queue, at most the 100,000 of one answer."""
    info = await ask(
        connection,
        f"STREAM.INFO.{subjects.JOBS_STREAM}",
        {"subjects_filter": f"jobs.{region}.>"},
    )
    if info.code:
        raise TopologyMissing(f"stream {subjects.JOBS_STREAM} is not declared; run `sparkle topology apply`")
    return as_table(info.table("state").get("subjects"))


def _oldest_ms(queued: Iterable[str]) -> dict[PriorityClass, int]:
    """When the oldest job of each class was made: the time in its UUIDv7, so that no job is read."""
    oldest: dict[PriorityClass, int] = {}
    for subject in queued:
        _, _, priority, _, job = subject.split(".")
        try:
            made_ms = uuid.UUID(job).int >> 80
        except ValueError:
            continue
        made = PriorityClass(priority)
        oldest[made] = min(made_ms, oldest.get(made, made_ms))
    return oldest
