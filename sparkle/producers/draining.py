"""Tells a worker to end, and says so. Knows no flags."""

from __future__ import annotations

import typer

from sparkle.producers.declaring import connected
from sparkle.producers.settings import ClientSettings
from sparkle.queue import control


async def drain_worker(settings: ClientSettings, worker: str) -> int:
    """Tell it; 0. Raises ConfigError for a worker that is not there, QueueError."""
    async with connected(settings) as connection:
        await control.drain_worker(connection, settings.region, worker)
    typer.echo(f"{worker} takes nothing more and hands its jobs over")
    return 0
