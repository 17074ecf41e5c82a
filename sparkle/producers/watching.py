"""Reads the queue's status once, or again and again, and shows it. Knows no flags."""

from __future__ import annotations

import asyncio

from rich.console import Console
from rich.live import Live

from sparkle.producers.declaring import connected
from sparkle.producers.settings import ClientSettings
from sparkle.producers.status_table import status_table
from sparkle.queue.control import WorkerRoster
from sparkle.queue.status import QueueStatus, read_classes, read_status


async def show_status(settings: ClientSettings, console: Console) -> int:
    """One table; 0. Hears heartbeats for a few seconds. Raises TopologyMissing, NotConnected."""
    async with connected(settings) as connection:
        console.print(status_table(await read_status(connection, settings.region)))
    return 0


async def watch_status(settings: ClientSettings, console: Console, *, every_s: float) -> int:
    """A table drawn anew every `every_s`, until cancelled. Raises TopologyMissing, NotConnected."""
    async with connected(settings) as connection:
        roster = WorkerRoster(connection, settings.region)
        await roster.start()
        with Live(console=console, auto_refresh=False) as live:
            while True:
                classes = await read_classes(connection, settings.region)
                table = status_table(QueueStatus(settings.region, classes, tuple(roster.workers())))
                if console.is_terminal:
                    live.update(table, refresh=True)
                else:
                    # on a pipe nothing can be drawn over: one table after the other
                    console.print(table)
                await asyncio.sleep(every_s)
