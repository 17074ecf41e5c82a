"""What nats-py leaves to its users: one tree of errors, the size of headers, an end that always ends."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import cast

import nats.errors
from nats.aio.client import Client

from sparkle.errors import MessageTooLarge, NotConnected, PublishUncertain, TopologyMissing

_AGAIN_S = 0.05
_GIVE_UP_S = 1.0


@contextmanager
def our_errors(subject: str) -> Generator[None]:
    """The library's errors as ours, and a cancellation that it swallowed while flushing."""
    task = asyncio.current_task()
    cancels = task.cancelling() if task is not None else 0
    try:
        yield
        if task is not None and task.cancelling() > cancels:
            raise asyncio.CancelledError
    except nats.errors.NoRespondersError:
        raise TopologyMissing(f"nobody listens to {subject}; run `sparkle topology apply`") from None
    except nats.errors.TimeoutError:
        raise PublishUncertain(f"no answer in time from {subject}; it may or may not be done") from None
    except nats.errors.MaxPayloadError:
        raise MessageTooLarge(f"message to {subject} is over the server's limit; shorten it") from None
    except nats.errors.OutboundBufferLimitError:
        raise NotConnected("the server is away and too much waits to be sent already") from None
    except (nats.errors.ConnectionClosedError, nats.errors.ConnectionDrainingError):
        raise NotConnected("the connection is closed; open a new one") from None


async def close(client: Client) -> None:
    """Close it, and what its reconnecting goes on to do: that can swallow the cancellation, and never ends.

    Raises OSError where what waits cannot be sent.
    """
    while True:
        await client.close()
        reconnecting = client._reconnection_task  # pyright: ignore[reportPrivateUsage] - as below
        if reconnecting is not None and not reconnecting.done():
            reconnecting.cancel()
            await asyncio.wait({reconnecting}, timeout=_AGAIN_S)
        elif client.is_closed:
            break
    # what it connected meanwhile
    abort(client)


async def give_up(connecting: asyncio.Task[None], client: Client) -> None:
    """End a connection that is being made: a cancellation that comes just as a step ends is swallowed."""
    while not connecting.done():
        connecting.cancel()
        await asyncio.wait({connecting}, timeout=_AGAIN_S)
    if client._flush_queue is None:  # pyright: ignore[reportUnknownMemberType, reportPrivateUsage]
        # it had not begun, and cannot close what it has not
        return
    try:
        async with asyncio.timeout(_GIVE_UP_S):
            await client.close()
    except OSError:
        # a TLS connection waits for the other side to say farewell
        abort(client)


def abort(client: Client) -> None:
    """Drop the TCP connection with all that waits to be sent, and end what still listens."""
    for subscription in client._subs.values():  # pyright: ignore[reportPrivateUsage] - as below
        # a subscription without a handler has no such task
        if (listening := subscription._wait_for_msgs_task) is not None:  # pyright: ignore[reportPrivateUsage]
            listening.cancel()
    transport = client._transport  # pyright: ignore[reportPrivateUsage] - nothing public reaches it
    writer = cast("asyncio.StreamWriter | None", getattr(transport, "_io_writer", None))
    if writer is not None:
        writer.transport.abort()


def header_bytes(headers: Mapping[str, str]) -> int:
    """Bytes of the header block: a first line, `name: value` lines, an empty line."""
    if not headers:
        return 0
    lines = sum(len(name.encode()) + len(value.encode()) + 4 for name, value in headers.items())
    return len("NATS/1.0\r\n") + lines + len("\r\n")
