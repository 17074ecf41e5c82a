"""Sends server-sent events as they come, and notices when nobody reads them. Knows no event's content."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Mapping, Sequence
from typing import TypeVar

from starlette.requests import Request
from starlette.types import Receive, Scope, Send

T = TypeVar("T")

DONE = b"data: [DONE]\n\n"

Headers = Sequence[tuple[bytes, bytes]]

_HEADERS: Headers = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    # what nginx reads: pieces are to go on as they come
    (b"x-accel-buffering", b"no"),
]


class ClientGone(Exception):
    """Whoever asked has closed the connection, or reads no more."""


def data(fields: Mapping[str, object]) -> bytes:
    """One event."""
    return b"data: " + json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


def named(fields: Mapping[str, object]) -> bytes:
    """One event with its type beside it, as responses have it."""
    return b"event: " + str(fields["type"]).encode() + b"\n" + data(fields)


async def unless_gone(request: Request, work: Awaitable[T]) -> T:
    """What `work` comes to; it is cancelled and ClientGone raised when the client goes first."""
    task = asyncio.ensure_future(work)
    gone = asyncio.create_task(_until_gone(request.receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        task.cancel()
        gone.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


class EventStream:
    """A response in pieces, ended at once when the client goes, or takes nothing for `send_timeout_s`."""

    def __init__(
        self, events: AsyncGenerator[bytes], *, send_timeout_s: float, headers: Headers = _HEADERS
    ) -> None:
        """`events` is closed at the end, whatever ends it; `headers` are those of what is no event."""
        self._headers = headers
        self._events = events
        self._send_timeout_s = send_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Be the response, as ASGI calls it. Raises ClientGone."""
        try:
            await unless_gone(Request(scope, receive), self._send(send))
        finally:
            await self._events.aclose()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self._headers})
        async for event in self._events:
            try:
                async with asyncio.timeout(self._send_timeout_s):
                    await send({"type": "http.response.body", "body": event, "more_body": True})
            except TimeoutError:
                raise ClientGone from None
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
