"""The library's client ends when it is closed, also where its reconnecting does not want to."""

from __future__ import annotations

import asyncio

from nats.aio.client import Client

from sparkle.queue.library import close


class Stubborn(Client):
    """A client whose reconnecting swallows a cancellation, and then says that it is not closed."""

    def __init__(self, swallows: int) -> None:
        super().__init__()
        self.closings = 0
        self._swallows = swallows
        self.reconnecting = self._reconnection_task = asyncio.create_task(self._go_on())

    async def close(self) -> None:
        self.closings += 1
        self._status = Client.CLOSED
        self.reconnecting.cancel()
        await asyncio.sleep(0)

    async def _go_on(self) -> None:
        for _ in range(self._swallows):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self._status = Client.RECONNECTING
        await asyncio.Event().wait()


async def test_it_is_closed_until_nothing_reconnects() -> None:
    client = Stubborn(swallows=3)
    await asyncio.sleep(0)
    await close(client)
    assert client.is_closed
    assert client.reconnecting.cancelled()
    assert client.closings >= 2


async def test_one_that_ends_at_once_is_closed_once() -> None:
    client = Stubborn(swallows=0)
    await asyncio.sleep(0)
    await close(client)
    assert client.is_closed
    assert client.closings == 1
