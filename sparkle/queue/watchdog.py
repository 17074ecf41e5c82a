"""Listens for its own echo over a connection, and reconnects when it stays away. Knows no message."""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from sparkle.errors import NotConnected

log = logging.getLogger(__name__)


class Watched(Protocol):
    """What the watchdog needs of a connection."""

    def has_ended(self) -> bool:
        """Whether the connection has ended for good; tells whoever waits for that."""
        ...

    @property
    def is_up(self) -> bool:
        """Whether the connection believes that the server is there."""
        ...

    async def echo(self, timeout_s: float) -> bool:
        """Whether a message to ourselves comes back in time."""
        ...

    async def reconnect(self) -> None:
        """Drop the TCP connection and make a new one."""
        ...


async def watch(connection: Watched, interval_s: float) -> None:
    """Until its end: a connection that says it is up but no longer echoes is made anew.

    An echo that never came is one that permissions forbid; it says nothing.
    """
    heard_once = False
    while not connection.has_ended():
        if connection.is_up:
            heard = await _heard(connection, interval_s)
            if heard_once and not heard and connection.is_up:
                log.warning("queue_silent", extra={"after_s": interval_s})
                await connection.reconnect()
            heard_once = heard_once or heard
        await asyncio.sleep(interval_s)


async def _heard(connection: Watched, timeout_s: float) -> bool:
    try:
        return await connection.echo(timeout_s)
    except NotConnected:
        return False
