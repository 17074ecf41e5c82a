"""The HTTP server's protocol with bounds on a request's head, which the library has not. Knows no request."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
TOO_SLOW = b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class BoundedHttp(HttpToolsProtocol):
    """A connection that is closed where a head is too long, or takes too long to come."""

    head_max_bytes: ClassVar[int]
    head_timeout_s: ClassVar[float]

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._head_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client is there: its first head is to come."""
        super().connection_made(transport)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """It has gone."""
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """More of a head or a body. The parser keeps a head's pieces until it is complete."""
        if self._head_timer is not None:
            self._head_bytes += len(data)
            if self._head_bytes > self.head_max_bytes and not self._completes(data):
                self._refuse(TOO_LARGE)
                return
        super().data_received(data)

    def on_message_begin(self) -> None:
        """A request begins; a later one of this connection has its own time."""
        super().on_message_begin()
        if self._head_timer is None:
            self._await_head()

    def on_headers_complete(self) -> None:
        """The head is there."""
        self._stop_timer()
        super().on_headers_complete()

    def _completes(self, data: bytes) -> bool:
        """Whether the head ends in here: then what follows is the body."""
        end = data.find(b"\r\n\r\n")
        return end >= 0 and self._head_bytes - len(data) + end <= self.head_max_bytes

    def _await_head(self) -> None:
        self._head_bytes = 0
        self._head_timer = self.loop.call_later(self.head_timeout_s, self._refuse, TOO_SLOW)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _refuse(self, answer: bytes) -> None:
        self._stop_timer()
        if not self.transport.is_closing():
            self.transport.write(answer)
            self.transport.close()


def bounded_http(*, max_bytes: int, timeout_s: float) -> type[BoundedHttp]:
    """The protocol with these bounds: the library makes one a connection and passes no settings on."""
    bounds = {"head_max_bytes": max_bytes, "head_timeout_s": timeout_s}
    return type("BoundedHttpOfSettings", (BoundedHttp,), bounds)
