"""Waits for an event, but not for ever. Knows nothing else."""

from __future__ import annotations

import asyncio


async def until(event: asyncio.Event, seconds: float) -> bool:
    """Wait for the event; False when the time is over first."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True
