"""Reads the queue's status once, or again and again, and shows it. Knows no flags."""

from __future__ import annotations

import asyncio

from rich.console import Console
from rich.live import Live

from sparkle.producers.settings import ClientSettings
from sparkle.producers.status_table import status_table
from sparkle.queue.connection import Connection, ConnectionSettings
from sparkle.queue.control import WorkerRoster
from sparkle.queue.status import QueueStatus, read_classes, read_status


async def show_status(settings: ClientSettings, console: Console) -> int:
    """One table; 0. Hears heartbeats for a few seconds. Raises TopologyMissing, NotConnected."""
    connection = await _connect(settings)
    try:
        console.print(status_table(await read_status(connection, settings.region)))
    finally:
        await connection.close()
    return 0


async def watch_status(settings: ClientSettings, console: Console, *, every_s: float) -> int:
    """A table drawn anew every `every_s`, until cancelled. Raises TopologyMissing, NotConnected."""
    connection = await _connect(settings)
    roster = WorkerRoster(connection, settings.region)
    try:
        await roster.start()
        with Live(console=console, auto_refresh=False) as live:
            while True:
                classes = await read_classes(connection, settings.region)
                status = QueueStatus(settings.region, classes, tuple(roster.workers()))
                live.update(status_table(status), refresh=True)
                await asyncio.sleep(every_s)
    finally:
        await connection.close()


async def _connect(settings: ClientSettings) -> Connection:
    return await Connection.open(ConnectionSettings(url=settings.nats, name="sparkle-status"))
