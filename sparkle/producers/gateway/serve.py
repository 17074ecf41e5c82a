"""One gateway in this process: connected, listening, until a signal ends it. Knows no flag."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

import uvicorn
import uvloop

from sparkle.errors import ConfigError, NotConnected
from sparkle.producers.dispatcher import Dispatcher
from sparkle.producers.gateway.access import Access, OpenAccess
from sparkle.producers.gateway.app import Bus, Gateway
from sparkle.producers.gateway.http_protocol import bounded_http
from sparkle.producers.gateway.settings import GatewaySettings
from sparkle.producers.metering.meter_address import named_as_meter
from sparkle.producers.metering.metering import open_metering
from sparkle.producers.metering.settings import MeteringSettings
from sparkle.producers.settings import ClientSettings
from sparkle.queue.connection import Connection
from sparkle.queue.control import WorkerRoster
from sparkle.quiet.process import keep_content_in

log = logging.getLogger(__name__)

BACKLOG = 2048


class HttpServer(uvicorn.Server):
    """The library's server without its own signal handlers."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """Signals are the process's matter."""
        yield


@asynccontextmanager
async def opened(settings: ClientSettings) -> AsyncGenerator[Bus]:
    """The queue, connected. Raises NotConnected, ConfigError for keys that cannot be used."""
    keys = settings.encryption.ring()
    connection = await Connection.open(settings.connection("sparkle-gateway"))
    dispatcher = Dispatcher(connection, settings, keys)
    roster = WorkerRoster(connection, settings.region)
    try:
        dispatcher.start()
        await roster.start()
        yield Bus(connection, dispatcher, roster)
    finally:
        await roster.stop()
        await dispatcher.close()
        await connection.close()


class Listening:
    """A gateway that answers on its port, as long as the block lasts."""

    def __init__(self, gateway: Gateway, settings: GatewaySettings) -> None:
        self._gateway = gateway
        config = uvicorn.Config(
            gateway.app,
            http=bounded_http(max_bytes=settings.head_max_bytes, timeout_s=settings.head_timeout_s),
            ws="none",
            lifespan="off",
            log_config=None,
            # a path can have a file's id in it, and a proxy's log is the place for it
            access_log=False,
            server_header=False,
            limit_concurrency=settings.max_connections,
            backlog=BACKLOG,
            timeout_graceful_shutdown=int(settings.drain_s) or 1,
        )
        self._server = HttpServer(config)
        self._socket = _listen(settings)
        self._task: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._socket.getsockname()[1])

    async def __aenter__(self) -> Listening:
        """Begin to answer."""
        self._task = asyncio.create_task(self._server.serve(sockets=[self._socket]))
        return self

    async def __aexit__(self, *_: object) -> None:
        """Take no more, let what is under way end in `drain_s`, then cancel it."""
        self.drain()
        assert self._task is not None, "entered before"
        await asyncio.wait({self._task})
        await self._gateway.close()
        self._socket.close()

    def drain(self) -> None:
        """Take no more; the second time, wait for nothing."""
        self._server.force_exit = self._server.should_exit
        self._server.should_exit = True

    async def until_ended(self) -> None:
        """Wait for the end. Raises what ended it."""
        assert self._task is not None, "entered before"
        await asyncio.shield(self._task)


def run_gateway(
    settings: GatewaySettings,
    client: ClientSettings,
    metering: MeteringSettings,
    say: Callable[[str], None],
) -> None:
    """Be a gateway until a signal.

    Raises ConfigError, NotConnected, TopologyMissing where keys are asked for and nothing holds any.
    """
    access = partial(open_access, client) if settings.no_keys else partial(keyed_access, metering)
    keep_content_in()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(settings, client, access, say))


async def _serve(
    settings: GatewaySettings,
    client: ClientSettings,
    access: Callable[[], contextlib.AbstractAsyncContextManager[Guard]],
    say: Callable[[str], None],
) -> None:
    async with opened(client) as bus, access() as guard:
        gateway = Gateway(bus, guard.access, settings, client)
        async with Listening(gateway, settings) as listening:
            loop = asyncio.get_running_loop()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, listening.drain)
            where = f"http://{settings.host}:{listening.port}/v1"
            log.info("gateway_listening", extra={"port": listening.port, "region": client.region})
            say(f"listening on {where}")
            await _until_one_ends(listening, bus.connection, *guard.connections)
    log.info("gateway_ended")


async def _until_one_ends(listening: Listening, *connections: Connection) -> None:
    """Raises NotConnected when it was a connection, which ended for good."""
    ends: list[asyncio.Task[object]] = [
        asyncio.create_task(listening.until_ended()),
        *(asyncio.create_task(connection.closed.wait()) for connection in connections),
    ]
    try:
        done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for end in ends:
            end.cancel()
        await asyncio.wait(ends)
    if ends[0] not in done:
        raise NotConnected("a connection to the queue ended for good; start the gateway again")
    ends[0].result()


@dataclass(frozen=True, slots=True)
class Guard:
    """Who may ask, and the connections without which nobody can tell."""

    access: Access
    connections: tuple[Connection, ...] = ()


@asynccontextmanager
async def open_access(client: ClientSettings) -> AsyncGenerator[Guard]:
    """Everybody on this machine is the client's tenant."""
    yield Guard(OpenAccess(tenant=client.tenant, region=client.region))


@asynccontextmanager
async def keyed_access(metering: MeteringSettings) -> AsyncGenerator[Guard]:
    """Whoever has a tenant's key. Raises NotConnected, TopologyMissing."""
    async with contextlib.AsyncExitStack() as opening:
        with named_as_meter():
            connection = await Connection.open(metering.connection("sparkle-gateway"))
            opening.push_async_callback(connection.close)
            access = await opening.enter_async_context(open_metering(connection, metering))
        yield Guard(access, (connection,))


def _listen(settings: GatewaySettings) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
        return socket.create_server((settings.host, settings.port), family=family, backlog=BACKLOG)
    except OSError as error:
        where = f"host {settings.host}, port {settings.port}"
        raise ConfigError(f"{where}: cannot be opened ({error.strerror}); choose another") from None
