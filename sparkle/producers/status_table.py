"""The queue's status as one table for the terminal. Knows no connection."""

from __future__ import annotations

from rich.table import Table

from sparkle.queue.status import QueueStatus
from sparkle.schemas.control import Heartbeat


def status_table(status: QueueStatus) -> Table:
    """Classes on top, workers below; counts and ages only."""
    table = Table(title=f"region {status.region}", title_justify="left")
    for name in ("class / worker", "waiting / state", "running / slots", "oldest / model"):
        table.add_column(name, justify="left" if name == "class / worker" else "right")
    for row in status.classes:
        table.add_row(row.priority, str(row.waiting), str(row.running), age(row.oldest_s))
    table.add_section()
    for worker in status.workers:
        table.add_row(worker.worker, worker.state, slots(worker), worker.model)
    if not status.workers:
        table.add_row("no worker", "", "", "")
    return table


def slots(worker: Heartbeat) -> str:
    """How full a worker is: `3 of 8`."""
    return f"{len(worker.running)} of {worker.slots}"


def age(seconds: float | None) -> str:
    """A waiting time, for people: `-`, `0.4 s`, `12 s`, `3 min 20 s`, `2 h 5 min`."""
    if seconds is None:
        return "-"
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = int(seconds) // 60
    return f"{minutes} min {int(seconds) % 60} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
