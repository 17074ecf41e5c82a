"""Declares the queue's streams and shows them on the terminal. Knows no flags."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from rich.console import Console
from rich.table import Table

from sparkle.producers.settings import ClientSettings
from sparkle.queue import topology
from sparkle.queue.connection import Connection
from sparkle.queue.topology import Topology, TopologySettings

_MIB = 1024 * 1024


async def apply_topology(settings: ClientSettings, wanted: TopologySettings) -> int:
    """Declare them and tell what changed; 0. Raises ConfigError, NotConnected."""
    async with connected(settings) as connection:
        for change in await topology.apply(connection, wanted):
            _console().print(f"{change.kind:8} {change.name:16} {change.outcome}")
    return 0


async def show_topology(settings: ClientSettings) -> int:
    """Show what is declared; 0. Raises TopologyMissing, NotConnected."""
    async with connected(settings) as connection:
        _show(await topology.show(connection))
    return 0


@asynccontextmanager
async def connected(settings: ClientSettings) -> AsyncGenerator[Connection]:
    """A connection for an operator's command."""
    connection = await Connection.open(settings.connection("sparkle-operator"))
    try:
        yield connection
    finally:
        await connection.close()


def _show(declared: Topology) -> None:
    streams = Table("stream", "replicas", "messages", "MiB", "of MiB")
    for stream in declared.streams:
        numbers = (
            stream.replicas,
            stream.messages,
            round(stream.size_bytes / _MIB, 1),
            stream.max_bytes // _MIB,
        )
        streams.add_row(stream.name, *map(str, numbers))
    consumers = Table("consumer", "waiting", "running", "idle requests")
    for consumer in declared.consumers:
        consumers.add_row(consumer.name, *map(str, (consumer.waiting, consumer.running, consumer.pulls)))
    _console().print(streams, consumers)


def _console() -> Console:
    return Console(highlight=False)
