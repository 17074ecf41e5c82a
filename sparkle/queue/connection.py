"""One connection to the NATS server, with the client library's traps handled. Knows no job.

The traps (facts of nats-py 2.16): an error callback that raises ends the read loop; so does a PONG after a
timed-out `flush`, so nothing here flushes; a payload over the server's limit closes the connection for good;
a dead read loop still says "connected", so a watchdog listens for its own echo.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription as NatsSubscription

from sparkle.errors import ConfigError, MessageTooLarge, NotConnected, PublishUncertain, TopologyMissing
from sparkle.queue.envelope import NO_HEADERS, Envelope
from sparkle.queue.stored import StoreOutcome, read_ack
from sparkle.queue.watchdog import watch

__all__ = ["Connection", "ConnectionSettings", "Envelope", "Handler", "Subscription"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionSettings:
    """Where the server is and how patient to be."""

    url: str = field(default="nats://127.0.0.1:4222", repr=False)
    """Servers, comma-separated; `nats://user:password@host:port` where one is needed."""

    name: str = "sparkle"
    """Name of this connection in the server's monitoring."""

    inbox_prefix: str = "_INBOX"
    """Where answers come to; private to each user where permissions are set."""

    connect_timeout_s: float = 5.0
    """How long `open` tries before it raises NotConnected."""

    request_timeout_s: float = 5.0
    """How long to wait for an answer where no other time is given."""

    reconnect_wait_s: float = 0.25
    """Mean wait between two tries of the same server; each process draws its own."""

    ping_interval_s: float = 5.0
    """How often to see whether the server is still there."""

    pending_bytes: int = 64 * 1024 * 1024
    """What may wait to be sent while the server is away."""

    def __post_init__(self) -> None:
        for name in ("connect_timeout_s", "request_timeout_s", "reconnect_wait_s", "ping_interval_s"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} is {getattr(self, name)} but must be above 0")
        if self.pending_bytes < 1024 * 1024:
            raise ConfigError(f"pending_bytes is {self.pending_bytes} but must be at least {1024 * 1024}")

    @property
    def servers(self) -> list[str]:
        """Each server's address."""
        return [server.strip() for server in self.url.split(",") if server.strip()]


Handler = Callable[[Envelope], Awaitable[None]]


class Subscription:
    """Interest in a subject, until stopped."""

    def __init__(self, subscription: NatsSubscription) -> None:
        self._subscription = subscription

    async def stop(self) -> None:
        """End it; messages not yet handled are dropped. A second call does nothing."""
        with suppress(nats.errors.ConnectionClosedError, nats.errors.BadSubscriptionError):
            await self._subscription.unsubscribe()


class Connection:
    """Publish, subscribe and ask, over one TCP connection that comes back by itself."""

    def __init__(self, settings: ConnectionSettings) -> None:
        """Use `open`; an object made here is not connected."""
        self.settings = settings
        self.closed = asyncio.Event()
        """Set when the connection has ended for good."""
        self._client = Client()
        self._up = asyncio.Event()
        self._callbacks: list[Callable[[], None]] = []
        self._watchdog: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, settings: ConnectionSettings) -> Connection:
        """Connect. Raises NotConnected when no server takes us within `connect_timeout_s`."""
        connection = cls(settings)
        try:
            async with asyncio.timeout(settings.connect_timeout_s):
                await connection._connect()
        except (OSError, TimeoutError, nats.errors.Error) as error:
            cause = connection._client.last_error or error
            await connection._client.close()
            raise NotConnected(
                f"no server at {_without_secrets(settings.servers)} within {settings.connect_timeout_s} s "
                f"({type(cause).__name__}: {cause}); start one, or check the address and the password"
            ) from None
        connection._up.set()
        connection._watchdog = asyncio.create_task(
            watch(connection, settings.ping_interval_s), name="queue-watchdog"
        )
        return connection

    async def _connect(self) -> None:
        settings = self.settings
        await self._client.connect(
            servers=settings.servers,
            name=settings.name,
            inbox_prefix=settings.inbox_prefix,
            error_cb=self._on_error,
            disconnected_cb=self._on_disconnected,
            reconnected_cb=self._on_reconnected,
            closed_cb=self._on_closed,
            max_reconnect_attempts=-1,
            # the library has no jitter of its own, and types seconds as int
            reconnect_time_wait=settings.reconnect_wait_s * random.uniform(0.5, 1.5),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
            ping_interval=settings.ping_interval_s,  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
            pending_size=settings.pending_bytes,
        )

    @property
    def max_payload_bytes(self) -> int:
        """The server's limit on headers and payload together."""
        return self._client.max_payload

    @property
    def is_up(self) -> bool:
        """Whether the server is there right now, as far as is known."""
        return self._up.is_set() and self._client.is_connected

    def on_reconnect(self, callback: Callable[[], None]) -> None:
        """Call `callback` after each reconnection; subscriptions are already back by then."""
        self._callbacks.append(callback)

    async def close(self) -> None:
        """Send what waits and end for good. Subscriptions end with it."""
        self._up.clear()
        if self._watchdog is not None:
            self._watchdog.cancel()
        await self._client.close()
        self.closed.set()

    async def publish(
        self, subject: str, payload: bytes, *, headers: Mapping[str, str] | None = None, reply: str = ""
    ) -> None:
        """Send without an answer; held back while the server is away.

        Raises MessageTooLarge (headers count), NotConnected when closed or too much is held back.
        """
        self._check_size(subject, payload, headers)
        with _our_errors(subject):
            await self._client.publish(subject, payload, reply, dict(headers) if headers else None)

    async def subscribe(self, subject: str, handler: Handler) -> Subscription:
        """Call `handler` for each message, one after the other, in the order of arrival.

        A handler's error is logged by its type alone and ends neither the subscription nor the connection.
        """

        async def guarded(message: Msg) -> None:
            try:
                await handler(_envelope(message))
            # the message's text may be in any error's text, so only the type is told
            except Exception as error:  # noqa: BLE001 - the library's read loop must survive any handler
                log.error("handler_failed", extra={"subject": subject, "error": type(error).__name__})

        with _our_errors(subject):
            subscription = await self._client.subscribe(subject, cb=guarded)  # pyright: ignore[reportUnknownMemberType] - a bare Future
        return Subscription(subscription)

    def new_inbox(self) -> str:
        """A subject nobody else listens to."""
        return self._client.new_inbox()

    async def request(
        self,
        subject: str,
        payload: bytes = b"",
        *,
        headers: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> Envelope:
        """Send and wait for the one answer.

        Raises NotConnected when the server stays away (nothing was sent), TopologyMissing when nobody
        listens, PublishUncertain without an answer in time, MessageTooLarge.
        """
        self._check_size(subject, payload, headers)
        wait_s = self.settings.request_timeout_s if timeout_s is None else timeout_s
        await self._until_up(wait_s)
        with _our_errors(subject):
            message = await self._client.request(
                subject, payload, timeout=wait_s, headers=dict(headers) if headers else None
            )
        return _envelope(message)

    async def publish_stored(
        self, subject: str, payload: bytes, *, headers: Mapping[str, str], timeout_s: float | None = None
    ) -> StoreOutcome:
        """Send to a stream and wait until it is stored.

        Raises what `request` and `read_ack` raise.
        """
        answer = await self.request(subject, payload, headers=headers, timeout_s=timeout_s)
        return read_ack(answer.payload)

    async def last_stored(self, stream: str, subject: str, *, timeout_s: float | None = None) -> bytes | None:
        """The last message of `subject` in `stream`, or None. Raises what `request` raises."""
        answer = await self.request(f"$JS.API.DIRECT.GET.{stream}.{subject}", timeout_s=timeout_s)
        if answer.status == "404":
            return None
        if answer.status:
            raise PublishUncertain(f"{stream} could not be read (status {answer.status}); try again")
        return answer.payload

    async def echo(self, timeout_s: float) -> bool:
        """Whether a message to ourselves comes back in time: all sent before has reached the server."""
        heard = asyncio.Event()

        async def hear(_: Envelope) -> None:
            heard.set()

        inbox = self.new_inbox()
        subscription = await self.subscribe(inbox, hear)
        try:
            async with asyncio.timeout(timeout_s):
                await self.publish(inbox, b"")
                await heard.wait()
        except TimeoutError:
            return False
        finally:
            await subscription.stop()
        return True

    async def reconnect(self) -> None:
        """Drop the TCP connection and make a new one; subscriptions come along."""
        await self._client.force_reconnect()

    def _check_size(self, subject: str, payload: bytes, headers: Mapping[str, str] | None) -> None:
        size = len(payload) + _header_bytes(headers or NO_HEADERS)
        if size > self.max_payload_bytes:
            raise MessageTooLarge(
                f"message to {subject} has {size} bytes with its headers but the server takes at most "
                f"{self.max_payload_bytes}; shorten it"
            )

    async def _until_up(self, timeout_s: float) -> None:
        if self._client.is_closed:
            raise NotConnected("the connection is closed; open a new one")
        try:
            async with asyncio.timeout(timeout_s):
                await self._up.wait()
        except TimeoutError:
            raise NotConnected(f"the server is away for {timeout_s} s; nothing was sent") from None

    async def _on_error(self, error: Exception) -> None:
        """Must never raise: the library would lose its read loop."""
        if isinstance(error, (OSError, TimeoutError, nats.errors.StaleConnectionError)):
            # comes with each try while the server is away; the change of state is logged once
            log.debug("queue_try_failed", extra={"error": type(error).__name__})
            return
        denied = "permissions violation" in str(error).lower()
        # a denial names the subject and the user, both ids
        detail = {"detail": str(error)} if denied else {}
        log.warning("queue_error", extra={"error": type(error).__name__, **detail})

    async def _on_disconnected(self) -> None:
        if self._up.is_set():
            self._up.clear()
            log.warning("queue_disconnected", extra={"connection": self.settings.name})

    async def _on_reconnected(self) -> None:
        self._up.set()
        log.info("queue_reconnected", extra={"connection": self.settings.name})
        for callback in self._callbacks:
            callback()

    async def _on_closed(self) -> None:
        self._up.clear()
        self.closed.set()


@contextmanager
def _our_errors(subject: str) -> Generator[None]:
    """The library's errors as ours."""
    try:
        yield
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


def _envelope(message: Msg) -> Envelope:
    return Envelope(message.subject, message.data, message.headers or NO_HEADERS, message.reply)


def _header_bytes(headers: Mapping[str, str]) -> int:
    """Bytes of the header block: a first line, `name: value` lines, an empty line."""
    if not headers:
        return 0
    lines = sum(len(name.encode()) + len(value.encode()) + 4 for name, value in headers.items())
    return len("NATS/1.0\r\n") + lines + len("\r\n")


def _without_secrets(servers: list[str]) -> str:
    return ", ".join(server.rpartition("@")[2].removeprefix("nats://") for server in servers)
