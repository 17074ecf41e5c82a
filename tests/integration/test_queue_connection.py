"""The connection against a real server: answers, order, restarts, a frozen server, the library's traps."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, cast

import nats.errors
import pytest

from sparkle.errors import NotConnected, PublishUncertain, TopologyMissing
from sparkle.queue.connection import Connection, ConnectionSettings, Envelope
from sparkle.queue.local import LocalServer
from sparkle.queue.watchdog import watch
from tests.conftest import Eventually


class Inbox:
    """A subject of our own, and what came to it."""

    def __init__(self, connection: Connection) -> None:
        self.subject = connection.new_inbox()
        self.payloads: list[bytes] = []

    async def take(self, envelope: Envelope) -> None:
        if envelope.payload == b"raise":
            raise ValueError("content that must not be shown")
        self.payloads.append(envelope.payload)


async def end_reading(connection: Connection) -> None:
    """It reads no more, and does not know it."""
    cast("Any", connection)._client._reading_task.cancel()


async def raise_from_the_error_callback(connection: Connection) -> None:
    """The same by the library's own way: somebody reads too slowly, and the callback that is told raises."""
    client = cast("Any", connection)._client

    async def raise_it(_: Exception) -> None:
        raise RuntimeError

    async def never_done(_: object) -> None:
        await asyncio.Event().wait()

    client._error_cb = raise_it
    await client.subscribe("some.where", cb=never_done, pending_msgs_limit=1)
    for _ in range(3):
        await connection.publish("some.where", b"x")
    await asyncio.wait({client._reading_task})


async def test_messages_come_in_order(connection: Connection, eventually: Eventually) -> None:
    inbox = Inbox(connection)
    await connection.subscribe(inbox.subject, inbox.take)
    sent = [str(number).encode() for number in range(500)]
    for payload in sent:
        await connection.publish(inbox.subject, payload)
    await eventually(lambda: len(inbox.payloads) == len(sent))
    assert inbox.payloads == sent


async def test_a_handlers_error_ends_nothing_and_shows_nothing(
    connection: Connection, eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    inbox = Inbox(connection)
    await connection.subscribe(inbox.subject, inbox.take)
    for payload in (b"raise", b"after"):
        await connection.publish(inbox.subject, payload)
    await eventually(lambda: inbox.payloads)
    assert inbox.payloads == [b"after"]
    (record,) = caplog.records
    assert (record.getMessage(), vars(record)["error"]) == ("handler_failed", "ValueError")
    assert "content" not in caplog.text


async def test_a_stopped_subscription_hears_nothing_and_stops_twice(connection: Connection) -> None:
    inbox = Inbox(connection)
    subscription = await connection.subscribe(inbox.subject, inbox.take)
    await subscription.stop()
    await subscription.stop()
    await connection.publish(inbox.subject, b"x")
    assert await connection.echo(5.0)
    assert inbox.payloads == []


async def test_a_request_has_its_answer_with_headers(connection: Connection) -> None:
    async def answer(envelope: Envelope) -> None:
        await connection.publish(
            envelope.reply, envelope.payload.upper(), headers={"kind": envelope.headers["kind"]}
        )

    await connection.subscribe("service.upper", answer)
    got = await connection.request("service.upper", b"text", headers={"kind": "a"})
    assert (got.payload, dict(got.headers)) == (b"TEXT", {"kind": "a"})


async def test_nobody_listening_is_said_at_once(connection: Connection) -> None:
    with pytest.raises(TopologyMissing, match=r"nobody listens to no\.such\.service"):
        await connection.request("no.such.service", timeout_s=60.0)


async def test_no_answer_in_time_is_uncertain(connection: Connection) -> None:
    inbox = Inbox(connection)
    await connection.subscribe("service.silent", inbox.take)
    with pytest.raises(PublishUncertain):
        await connection.request("service.silent", timeout_s=0.05)


async def test_no_server_is_said_within_the_time_given() -> None:
    server = LocalServer()
    async with server:
        url = server.url
    with pytest.raises(NotConnected, match=r"no server at 127.0.0.1:\d+ within 0.3 s"):
        await Connection.open(ConnectionSettings(url=url, connect_timeout_s=0.3))


async def test_an_opening_that_is_cancelled_leaves_no_connection(eventually: Eventually) -> None:
    came: list[asyncio.StreamWriter] = []
    gone: list[asyncio.StreamWriter] = []

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came.append(writer)
        await reader.read()
        gone.append(writer)
        writer.close()

    server = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    opening = asyncio.create_task(Connection.open(ConnectionSettings(url=f"nats://127.0.0.1:{port}")))
    await eventually(lambda: came)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    await eventually(lambda: set(gone) == set(came))
    server.close()


async def test_an_opening_is_given_up_in_time_whatever_the_library_swallows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    swallowed = 0

    async def connect(*_: object) -> None:
        nonlocal swallowed
        while swallowed < 3:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                swallowed += 1
        await asyncio.Event().wait()

    monkeypatch.setattr(Connection, "_connect", connect)
    with pytest.raises(NotConnected, match="TimeoutError"):
        await Connection.open(ConnectionSettings(connect_timeout_s=0.05))
    assert swallowed == 3


async def test_a_password_is_never_shown() -> None:
    server = LocalServer()
    async with server:
        url = server.url.replace("nats://", "nats://me:secret@")
        settings = ConnectionSettings(url=url, connect_timeout_s=0.3)
        with pytest.raises(NotConnected, match="Authorization Violation") as refused:
            await Connection.open(settings)
    assert "secret" not in str(refused.value)
    assert "secret" not in repr(settings)


async def test_a_closed_connection_says_so(nats_server: LocalServer) -> None:
    connection = await Connection.open(ConnectionSettings(url=nats_server.url))
    await connection.close()
    assert connection.closed.is_set()
    assert not connection.is_up
    with pytest.raises(NotConnected, match="closed"):
        await connection.publish("x", b"")
    with pytest.raises(NotConnected, match="closed"):
        await connection.request("x")
    with pytest.raises(NotConnected, match="closed"):
        await connection.subscribe("x", Inbox(connection).take)
    await connection.close()


async def test_a_connection_that_the_server_ends_for_good_says_so(nats_server: LocalServer) -> None:
    """The library's own closing fails on the reset connection, and it calls nobody back."""
    connection = await Connection.open(ConnectionSettings(url=nats_server.url, ping_interval_s=0.1))
    too_large = b"x" * connection.max_payload_bytes
    await cast("Any", connection)._client.publish("some.where", too_large, headers={"name": "value"})
    async with asyncio.timeout(10.0):
        await connection.closed.wait()
    assert not connection.is_up
    with pytest.raises(NotConnected):
        await connection.publish("some.where", b"x")
    await connection.close()


async def test_a_cancellation_is_not_swallowed(connection: Connection) -> None:
    """The library swallows one that comes while it waits for room to flush."""
    client = cast("Any", connection)._client
    flushes = client._flush_queue
    full: asyncio.Queue[asyncio.Future[None]] = asyncio.Queue(maxsize=1)
    full.put_nowait(asyncio.get_running_loop().create_future())
    client._flush_queue = full
    subscribing = asyncio.create_task(connection.subscribe("some.where", Inbox(connection).take))
    await asyncio.sleep(0)
    subscribing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await subscribing
    client._flush_queue = flushes


async def test_a_frozen_server_does_not_hold_up_the_end(
    nats_server: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparkle.queue.connection._CLOSE_S", 0.2)
    connection = await Connection.open(ConnectionSettings(url=nats_server.url))
    nats_server.freeze()
    for _ in range(8):
        await connection.publish("some.where", bytes(4 * 1024 * 1024))
    async with asyncio.timeout(5.0):
        await connection.close()
    assert connection.closed.is_set()
    nats_server.thaw()


async def test_what_waits_to_be_sent_is_sent_before_the_end(
    nats_server: LocalServer, connection: Connection, eventually: Eventually
) -> None:
    inbox = Inbox(connection)
    await connection.subscribe(inbox.subject, inbox.take)
    assert await connection.echo(5.0)
    leaving = await Connection.open(ConnectionSettings(url=nats_server.url))
    for number in range(100):
        await leaving.publish(inbox.subject, str(number).encode())
    await leaving.close()
    await eventually(lambda: len(inbox.payloads) == 100)


async def test_a_restart_is_said_once_and_subscriptions_come_back(
    nats_server: LocalServer,
    connection: Connection,
    eventually: Eventually,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, logger="sparkle.queue.connection")
    inbox, back = Inbox(connection), asyncio.Event()
    await connection.subscribe(inbox.subject, inbox.take)
    connection.on_reconnect(back.set)
    await nats_server.restart()
    await back.wait()
    await connection.publish(inbox.subject, b"after")
    await eventually(lambda: inbox.payloads == [b"after"])
    assert not connection.closed.is_set()
    assert [record.getMessage() for record in caplog.records] == ["queue_disconnected", "queue_reconnected"]


async def test_messages_published_while_the_server_is_away_are_sent_when_it_is_back(
    nats_server: LocalServer, connection: Connection, eventually: Eventually
) -> None:
    inbox = Inbox(connection)
    await connection.subscribe(inbox.subject, inbox.take)
    await nats_server.stop()
    await eventually(lambda: not connection.is_up)
    await connection.publish(inbox.subject, b"held back")
    await nats_server.start()
    await eventually(lambda: inbox.payloads == [b"held back"])


async def test_a_frozen_server_is_left_and_found_again(
    nats_server: LocalServer, eventually: Eventually
) -> None:
    """The TCP connection stays up, so only the missing echo or pong can tell."""
    connection = await Connection.open(ConnectionSettings(url=nats_server.url, ping_interval_s=0.1))
    back = asyncio.Event()
    connection.on_reconnect(back.set)
    nats_server.freeze()
    await eventually(lambda: not connection.is_up)
    nats_server.thaw()
    await back.wait()
    assert await connection.echo(5.0)
    await connection.close()


class Echoing:
    """A connection under a watchdog of the test's own, which tells when that has heard its first echo."""

    def __init__(self, connection: Connection) -> None:
        self.heard = asyncio.Event()
        self.reconnect = connection.reconnect
        self._connection = connection

    @property
    def is_up(self) -> bool:
        return self._connection.is_up

    def has_ended(self) -> bool:
        return self._connection.has_ended()

    async def echo(self, timeout_s: float) -> bool:
        heard = await self._connection.echo(timeout_s)
        self.heard.set()
        return heard


@pytest.mark.parametrize("die", [end_reading, raise_from_the_error_callback])
async def test_a_dead_read_loop_is_found_by_its_missing_echo(
    nats_server: LocalServer,
    caplog: pytest.LogCaptureFixture,
    die: Callable[[Connection], Awaitable[None]],
) -> None:
    """The library's worst trap: it says "connected" and hears nothing. Its own pings are off here."""
    connection = await Connection.open(ConnectionSettings(url=nats_server.url, ping_interval_s=3600.0))
    back, line = asyncio.Event(), Echoing(connection)
    connection.on_reconnect(back.set)
    watching = asyncio.create_task(watch(line, 0.1))
    await line.heard.wait()
    await die(connection)
    assert connection.is_up
    await back.wait()
    assert await connection.echo(5.0)
    assert "queue_silent" in [record.getMessage() for record in caplog.records]
    watching.cancel()
    await connection.close()


async def test_a_pong_that_nobody_waits_for_any_more_ends_nothing(nats_server: LocalServer) -> None:
    connection = await Connection.open(ConnectionSettings(url=nats_server.url, ping_interval_s=3600.0))
    nats_server.freeze()
    with pytest.raises(nats.errors.TimeoutError):
        await cast("Any", connection)._client.flush(timeout=0.05)
    nats_server.thaw()
    assert await connection.echo(5.0)
    assert connection.generation == 0
    await connection.close()
