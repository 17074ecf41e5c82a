"""When the watchdog makes a connection anew."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from sparkle.errors import NotConnected
from sparkle.queue.watchdog import watch


class Line:
    """A connection that echoes as told, then has ended."""

    def __init__(self, echoes: list[bool | None]) -> None:
        self.is_up = True
        self.reconnects = 0
        self.done = asyncio.Event()
        self._echoes: Iterator[bool | None] = iter(echoes)

    def has_ended(self) -> bool:
        return self.done.is_set()

    async def echo(self, timeout_s: float) -> bool:
        heard = next(self._echoes, None)
        if heard is None:
            # known to be down meanwhile: the library makes it anew by itself
            self.is_up = False
            self.done.set()
            raise NotConnected("closed")
        return heard

    async def reconnect(self) -> None:
        self.reconnects += 1


async def reconnects(echoes: list[bool | None]) -> int:
    line = Line(echoes)
    await watch(line, 0.001)
    return line.reconnects


@pytest.mark.parametrize(
    ("echoes", "expected"),
    [
        ([True, True], 0),
        ([True, False, True], 1),
        ([True, False, False], 2),
        # forbidden by permissions, it never came
        ([False, False, False], 0),
    ],
)
async def test_only_an_echo_that_once_came_is_missed(echoes: list[bool | None], expected: int) -> None:
    assert await reconnects(echoes) == expected
