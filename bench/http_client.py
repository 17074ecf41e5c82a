"""As much of an HTTP client as a load needs: one connection, streams read by their bytes. Knows no figure."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Self
from urllib.parse import urlsplit

PATH = "/v1/completions"


@dataclass(frozen=True, slots=True)
class Streamed:
    """When an answer's pieces came, in seconds of the loop's clock."""

    first_s: float
    num_tokens: int
    late_s: float
    """The longest that a token came later than its pace from the first one on."""


class HttpClient:
    """One connection that is kept open."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, key: str | None = None
    ) -> None:
        self._key_line = "" if key is None else f"authorization: Bearer {key}\r\n"
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, url: str, key: str | None = None) -> Self:
        """Connect to the gateway at `http://host:port/…`, with a tenant's key."""
        where = urlsplit(url)
        return cls(*await asyncio.open_connection(where.hostname, where.port), key)

    def close(self) -> None:
        """End the connection."""
        self._writer.close()

    async def stream(self, prompt: str, max_tokens: int, *, pace_s: float = 0.0) -> Streamed:
        """A streamed completion of `paced_worker` at its pace. Raises RuntimeError where it fails."""
        loop = asyncio.get_running_loop()
        await self._send({"prompt": prompt, "max_tokens": max_tokens, "stream": True})
        await self._head()
        first_s = late_s = 0.0
        num_tokens = 0
        while True:
            size = int(await self._reader.readline(), 16)
            piece = await self._reader.readexactly(size + 2)
            if not size:
                return Streamed(first_s, num_tokens, late_s)
            if written := piece.count(b"token "):
                now_s = loop.time()
                first_s = first_s or now_s
                # of several tokens at once the first has waited longest
                late_s = max(late_s, now_s - first_s - num_tokens * pace_s)
                num_tokens += written

    async def whole(self, prompt: str, max_tokens: int) -> int:
        """A completion at once; the bytes of its body. Raises RuntimeError where it fails."""
        await self._send({"prompt": prompt, "max_tokens": max_tokens})
        size = await self._head()
        await self._reader.readexactly(size)
        return size

    async def _send(self, fields: dict[str, object]) -> None:
        body = json.dumps(fields).encode()
        head = f"POST {PATH} HTTP/1.1\r\nhost: bench\r\n{self._key_line}content-length: {len(body)}\r\n\r\n"
        self._writer.write(head.encode() + body)
        await self._writer.drain()

    async def _head(self) -> int:
        """The body's length, 0 where it does not say. Raises RuntimeError for any status but 200."""
        head = await self._reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"the gateway answered {head.splitlines()[0].decode()}")
        _, found, rest = head.lower().partition(b"content-length: ")
        return int(rest.split(b"\r\n")[0]) if found else 0
