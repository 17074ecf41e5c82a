"""Reads a request's body: bounded in bytes and time, one request's and all together. Knows no field."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable
from contextlib import asynccontextmanager, suppress
from typing import TypeVar

from pydantic import ValidationError
from starlette.requests import ClientDisconnect, Request

from sparkle.producers.gateway.event_stream import ClientGone
from sparkle.producers.gateway.faults import RETRY_S, ApiFault, from_validation
from sparkle.schemas.message import Part

P = TypeVar("P", bound=Part)

LINGER_S = 1.0
LINGER_BYTES = 64 * 1024 * 1024
"""How long, and how far, a body that is too large is still listened to."""

_CLOSE = {"Connection": "close"}


class BodyBudget:
    """The bytes of all bodies that are held now."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._held_bytes = 0

    @asynccontextmanager
    async def held(self) -> AsyncGenerator[Held]:
        """Space for one request's body, until the request is answered."""
        held = Held(self)
        try:
            yield held
        finally:
            self._held_bytes -= held.size_bytes

    def take(self, size_bytes: int) -> None:
        """Count more bytes. Raises ApiFault when all bodies together are too large."""
        if self._held_bytes + size_bytes > self._max_bytes:
            message = "the gateway holds as many requests as it may; try again"
            raise ApiFault(503, "overloaded", message, headers={"Retry-After": str(RETRY_S)})
        self._held_bytes += size_bytes


class Held:
    """One request's part of the budget."""

    def __init__(self, budget: BodyBudget) -> None:
        self._budget = budget
        self.size_bytes = 0

    def take(self, size_bytes: int) -> None:
        """Count more bytes of this request. Raises ApiFault."""
        self._budget.take(size_bytes)
        self.size_bytes += size_bytes


async def pieces(request: Request, held: Held, *, max_bytes: int, timeout_s: float) -> AsyncGenerator[bytes]:
    """The body as it comes. Raises ApiFault: 413 when it is larger, 408 when it takes longer."""
    stream = request.stream()
    received_bytes = int(request.headers.get("content-length", "0"))
    try:
        if received_bytes <= max_bytes:
            received_bytes = 0
            async with asyncio.timeout(timeout_s):
                async for piece in stream:
                    received_bytes += len(piece)
                    if received_bytes > max_bytes:
                        break
                    held.take(len(piece))
                    yield piece
        if received_bytes > max_bytes:
            await _let_pass(stream)
            message = (
                f"the body has {received_bytes} bytes or more but at most {max_bytes} are read; shorten it"
            )
            raise ApiFault(413, "too_large", message, headers=_CLOSE)
    except TimeoutError:
        message = f"the body was not complete within {timeout_s:g} s"
        raise ApiFault(408, "body_timeout", message, headers=_CLOSE) from None
    except ClientDisconnect:
        raise ClientGone from None


async def _let_pass(stream: AsyncIterable[bytes]) -> None:
    """Read some of what is not wanted: a client that is cut off while it sends sees no answer."""
    passed_bytes = 0
    with suppress(TimeoutError):
        async with asyncio.timeout(LINGER_S):
            async for piece in stream:
                passed_bytes += len(piece)
                if passed_bytes > LINGER_BYTES:
                    return


async def read_as(model: type[P], request: Request, held: Held, *, max_bytes: int, timeout_s: float) -> P:
    """The body as JSON of this form. Raises ApiFault."""
    parts = [piece async for piece in pieces(request, held, max_bytes=max_bytes, timeout_s=timeout_s)]
    try:
        return model.model_validate_json(b"".join(parts))
    except ValidationError as error:
        raise from_validation(error) from None
