"""One connection to the NATS server, with the client library's traps handled. Knows no job.

The traps (facts of nats-py 2.16): a message that it cannot read ends the read loop, and so does a PONG after
a timed-out `flush` (`receiving.py`), and an error callback that raises, so ours does not; a payload over the
server's limit closes the connection for good; a dead read loop still says "connected", so a watchdog listens
for its own echo; an end for good may never reach the callback, so the watchdog looks for it; a cancellation
is swallowed while it flushes, so it is raised again; its own is while it reconnects, so that it is closed
until it stays closed; the user in an address goes to that one server, so it is given to all.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

import nats.errors
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription as NatsSubscription

from sparkle.errors import MessageTooLarge, NotConnected, PublishUncertain, TopologyMissing
from sparkle.queue.bus_access import Credentials
from sparkle.queue.connection_settings import ConnectionSettings
from sparkle.queue.envelope import NO_HEADERS, Envelope
from sparkle.queue.library import abort, close, give_up, header_bytes, our_errors
from sparkle.queue.receiving import Receiver
from sparkle.queue.stored import StoreOutcome, read_ack
from sparkle.queue.watchdog import watch

__all__ = ["Connection", "ConnectionSettings", "Envelope", "Handler", "Subscription"]

log = logging.getLogger(__name__)

_CLOSE_S = 5.0

NOBODY = "503"
"""The status of an answer that the server gives where nobody listens."""


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
        self._client = Receiver()
        self._up = asyncio.Event()
        self.generation = 0
        """How often the connection has come back: what was true of the server may no longer be."""
        self._callbacks: list[Callable[[], None]] = []
        self._watchdog: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, settings: ConnectionSettings) -> Connection:
        """Connect. Raises NotConnected when no server takes us within `connect_timeout_s`.

        Raises ConfigError for a seed or a certificate that cannot be used.
        """
        connection = cls(settings)
        credentials = settings.access.read(settings.inbox_group)
        connecting = asyncio.create_task(connection._connect(credentials), name="queue-connect")
        try:
            await asyncio.wait({connecting}, timeout=settings.connect_timeout_s)
            if not connecting.done():
                raise TimeoutError
            connecting.result()
        except asyncio.CancelledError:
            await give_up(connecting, connection._client)
            raise
        except (OSError, TimeoutError, nats.errors.Error) as error:
            cause = connection._client.last_error or error
            await give_up(connecting, connection._client)
            raise NotConnected(
                f"no server at {settings.shown} within {settings.connect_timeout_s} s "
                f"({type(cause).__name__}: {cause}); start one, or check address, password and [bus]"
            ) from None
        connection._up.set()
        connection._watchdog = asyncio.create_task(
            watch(connection, settings.ping_interval_s), name="queue-watchdog"
        )
        return connection

    async def _connect(self, credentials: Credentials) -> None:
        settings, login = self.settings, self.settings.login
        await self._client.connect(
            servers=settings.servers,
            name=settings.name,
            inbox_prefix=credentials.inbox_prefix,
            nkeys_seed_str=credentials.seed,
            # to servers that it is told of by others, the library would go without
            user=login.user,
            password=login.password,
            token=login.token,
            tls=credentials.tls,
            # begun by us: a server in between cannot talk us out of it
            tls_handshake_first=credentials.tls is not None,
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

    def has_ended(self) -> bool:
        """Whether the connection has ended for good; the library does not always tell, so it is asked."""
        if self._client.is_closed and not self.closed.is_set():
            abort(self._client)
            self._ended()
        return self.closed.is_set()

    async def close(self) -> None:
        """Send what waits and end for good. Subscriptions end with it."""
        self._up.clear()
        if self._watchdog is not None:
            self._watchdog.cancel()
        task = asyncio.current_task()
        cancels = task.cancelling() if task is not None else 0
        try:
            async with asyncio.timeout(_CLOSE_S):
                await close(self._client)
        except OSError:
            # a frozen server never takes what waits (TimeoutError), a lost one cannot: the library stops
            # half way, and has no way to go on without it
            abort(self._client)
        except asyncio.CancelledError:
            abort(self._client)
            # that of the library's own reconnecting task comes out here too; only ours is passed on
            if task is not None and task.cancelling() > cancels:
                raise
        finally:
            self._ended()

    async def publish(
        self, subject: str, payload: bytes, *, headers: Mapping[str, str] | None = None, reply: str = ""
    ) -> None:
        """Send without an answer; held back while the server is away.

        Raises MessageTooLarge (headers count), NotConnected when closed or too much is held back.
        """
        self._check_size(subject, payload, headers)
        with our_errors(subject):
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

        with our_errors(subject):
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
        with our_errors(subject):
            message = await self._client.request(
                subject, payload, timeout=wait_s, headers=dict(headers) if headers else None
            )
        return _envelope(message)

    async def request_at(self, answer_at: str, subject: str, payload: bytes, *, timeout_s: float) -> Envelope:
        """Send and wait for the one answer on `answer_at`, where whoever answers may publish.

        Raises what `request` raises.
        """
        self._check_size(subject, payload, None)
        await self._until_up(timeout_s)
        answer: asyncio.Future[Envelope] = asyncio.get_running_loop().create_future()

        async def take(envelope: Envelope) -> None:
            if not answer.done():
                answer.set_result(envelope)

        subscription = await self.subscribe(answer_at, take)
        try:
            await self.publish(subject, payload, reply=answer_at)
            async with asyncio.timeout(timeout_s):
                envelope = await answer
        except TimeoutError:
            raise PublishUncertain(f"no answer in time from {subject}; it may or may not be done") from None
        finally:
            await subscription.stop()
        if envelope.status == NOBODY:
            raise TopologyMissing(f"nobody listens to {subject}")
        return envelope

    async def publish_stored(
        self, subject: str, payload: bytes, *, headers: Mapping[str, str], timeout_s: float | None = None
    ) -> StoreOutcome:
        """Send to a stream and wait until it is stored.

        Raises what `request` and `read_ack` raise.
        """
        answer = await self.request(subject, payload, headers=headers, timeout_s=timeout_s)
        return read_ack(answer.payload)

    async def last_stored(self, stream: str, subject: str, *, timeout_s: float | None = None) -> bytes | None:
        """The payload of the last message of `subject` in `stream`, or None. Raises what `request` raises."""
        found = await self.last_message(stream, subject, timeout_s=timeout_s)
        return None if found is None else found.payload

    async def last_message(
        self, stream: str, subject: str, *, timeout_s: float | None = None
    ) -> Envelope | None:
        """The same with its headers."""
        read = f"$JS.API.DIRECT.GET.{stream}.{subject}"
        try:
            answer = await self.request(read, timeout_s=timeout_s)
        except TopologyMissing as missing:
            # the library takes any such header for the server's: a tombstone with one would never be read
            wait_s = self.settings.request_timeout_s if timeout_s is None else timeout_s
            try:
                answer = await self.request_at(self.new_inbox(), read, b"", timeout_s=wait_s)
            except TopologyMissing:
                raise missing from None
        if answer.status == "404":
            return None
        if answer.status:
            raise PublishUncertain(f"{stream} could not be read (status {answer.status}); try again")
        return answer

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
        size = len(payload) + header_bytes(headers or NO_HEADERS)
        if size > self.max_payload_bytes:
            raise MessageTooLarge(
                f"message to {subject} has {size} bytes with its headers but the server takes at most "
                f"{self.max_payload_bytes}; shorten it"
            )

    async def _until_up(self, timeout_s: float) -> None:
        if self.has_ended():
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
        self.generation += 1
        self._up.set()
        log.info("queue_reconnected", extra={"connection": self.settings.name})
        for callback in self._callbacks:
            callback()

    async def _on_closed(self) -> None:
        self._ended()

    def _ended(self) -> None:
        self._up.clear()
        self.closed.set()


def _envelope(message: Msg) -> Envelope:
    return Envelope(message.subject, message.data, message.headers or NO_HEADERS, message.reply)
