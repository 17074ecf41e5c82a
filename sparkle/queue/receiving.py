"""Reads what the server sends; no message, however malformed, ends the connection. Knows no job.

The library's own reader (nats-py 2.16) stops at a subject or a status that is no UTF-8 and at a header block
that is cut short, and drops the connection at a subject with a vertical tab or a form feed. The server passes
all of them on, and a job with one would come again after each `ack_wait`, to end one worker after the other.
Here such a message arrives: the bad bytes of its subject replaced, without its headers. Also a PONG for
which nobody waits any more stops the library's reader, and not this one.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import ProtocolError
from nats.protocol.parser import Parser

_LINE_END = b"\r\n"


@dataclass(frozen=True, slots=True)
class Announced:
    """A message whose line has been read and whose body has not."""

    subject: bytes
    sid: int
    reply: bytes
    header_bytes: int
    size_bytes: int
    """Headers and payload."""


class Receiver(Client):
    """The library's client with a reader that stands everything a publisher can send."""

    def __init__(self) -> None:
        super().__init__()
        self._ps = LineReader(self._on_line, self._on_body)

    async def _on_line(self, line: bytes) -> Announced | None:
        """A line of the protocol; the message it announces, if it does. Raises ProtocolError."""
        kind, _, rest = line.partition(b" ")
        match kind.upper():
            case b"MSG":
                return read_announced(rest, with_headers=False)
            case b"HMSG":
                return read_announced(rest, with_headers=True)
            case b"PING":
                await self._process_ping()
            case b"PONG":
                # whoever waited for it has given up: the library would read no more
                with suppress(asyncio.InvalidStateError):
                    await self._process_pong()
            case b"-ERR":
                await self._process_err(rest.decode(errors="replace").strip().lower())
            case b"INFO":
                await self._process_info(json.loads(rest))
            case b"+OK":
                pass
            case _:
                raise ProtocolError("a line that is not of the protocol")
        return None

    async def _on_body(self, message: Announced, body: bytes) -> None:
        headers, payload = body[: message.header_bytes], body[message.header_bytes :]
        await self._process_msg(message.sid, message.subject, message.reply, payload, headers)

    async def _process_headers(self, headers: bytes) -> dict[str, str] | None:
        try:
            return await super()._process_headers(headers)  # pyright: ignore[reportUnknownMemberType] - bytes
        except (IndexError, UnicodeDecodeError):
            return None

    def _build_message(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: dict[str, str] | None
    ) -> Msg:
        return Msg(
            _client=self,
            subject=subject.decode(errors="replace"),
            reply=reply.decode(errors="replace"),
            data=data,
            headers=headers,
            _sid=sid,
        )


class LineReader(Parser):
    """Cuts what the server sends into lines, which end in CR LF, and bodies of the announced sizes."""

    def __init__(
        self,
        on_line: Callable[[bytes], Awaitable[Announced | None]],
        on_body: Callable[[Announced, bytes], Awaitable[None]],
    ) -> None:
        """`on_line` says of each line what it announces: then a body comes next."""
        self._on_line = on_line
        self._on_body = on_body
        super().__init__()  # pyright: ignore[reportUnknownMemberType] - its client, which is not used here

    def reset(self) -> None:
        """Forget what was read: the connection is a new one."""
        super().reset()
        self._announced: Announced | None = None

    async def parse(self, data: bytes = b"") -> None:
        """Take more bytes and hand on all that is complete. Raises ProtocolError for any other line."""
        self.buf.extend(data)
        while (part := self._next_part()) is not None:
            message, self._announced = self._announced, None
            if message is None:
                self._announced = await self._on_line(part)
            else:
                await self._on_body(message, part)

    def _next_part(self) -> bytes | None:
        """The next line, or body of the message announced, without its end; None while it is incomplete."""
        size = self.buf.find(_LINE_END) if self._announced is None else self._announced.size_bytes
        if size < 0 or len(self.buf) < size + len(_LINE_END):
            return None
        part = bytes(self.buf[:size])
        del self.buf[: size + len(_LINE_END)]
        return part


def read_announced(rest: bytes, *, with_headers: bool) -> Announced:
    """`subject sid [reply] [header bytes] bytes`, as a MSG or HMSG line says. Raises ProtocolError."""
    # not split(): that would also cut at the bytes that only look blank, and those may be in a subject
    parts = [part for part in rest.replace(b"\t", b" ").split(b" ") if part]
    num_sizes = 2 if with_headers else 1
    try:
        subject, sid, *reply = parts[:-num_sizes]
        sizes = [int(part) for part in parts[-num_sizes:]]
        return Announced(
            subject=subject,
            sid=int(sid),
            reply=reply[0] if reply else b"",
            header_bytes=sizes[0] if with_headers else 0,
            size_bytes=sizes[-1],
        )
    except ValueError:
        raise ProtocolError("a message line without its sizes") from None
