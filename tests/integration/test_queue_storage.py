"""An account that could write jobs and answers to files is not used."""

from __future__ import annotations

import pytest

from sparkle.errors import ConfigError, NotConnected
from sparkle.queue import topology
from sparkle.queue.connection import Connection, ConnectionSettings
from sparkle.queue.envelope import Envelope
from sparkle.queue.local import LocalServer
from sparkle.queue.storage import require_memory
from sparkle.queue.topology import TopologySettings
from tests.worker_at_work import at_work


class AccountServer(LocalServer):
    """A server whose account has other limits."""

    def __init__(self, limits: str) -> None:
        super().__init__()
        self._limits = limits

    def _config(self) -> str:
        config = super()._config()
        # the server's own room comes first, and METER has all of it
        room = f"max_file: {self.settings.max_file_bytes}"
        assert (config.count(room), config.count("max_file: 0 }")) == (2, 1)
        return config.replace(room, f"{room}0", 1).replace("max_file: 0 }", f"{self._limits} }}")


async def opened(server: LocalServer) -> Connection:
    return await Connection.open(ConnectionSettings(url=server.url))


@pytest.mark.parametrize(
    ("limits", "room"), [("max_streams: -1", "any number of"), ("max_file: 1048576", "1,048,576")]
)
async def test_topology_and_workers_refuse_an_account_with_room_for_files(
    limits: str, room: str, nats_binary: None
) -> None:
    async with AccountServer(limits) as server:
        connection = await opened(server)
        with pytest.raises(ConfigError, match=f"may store {room} bytes in files.*max_file: 0"):
            await topology.apply(connection, TopologySettings())
        with pytest.raises(ConfigError, match=f"may store {room} bytes in files"):
            async with at_work(server.url) as worker:
                await worker.end()
        await connection.close()


async def test_an_account_of_memory_alone_is_used(nats_server: LocalServer) -> None:
    connection = await opened(nats_server)
    await require_memory(connection)
    await connection.close()


async def test_a_tier_with_room_for_files_is_found(
    nats_server: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = await opened(nats_server)
    answers = [
        '{"limits": {"max_storage": 0}, "tiers": {"R1": {"limits": {"max_storage": 0}}}}',
        '{"limits": {"max_storage": 0}, "tiers": {"R3": {"limits": {"max_storage": 7}}}}',
        '{"error": {"code": 503, "err_code": 10008}}',
    ]

    async def answer(*_: object, **__: object) -> Envelope:
        return Envelope("inbox", answers.pop(0).encode())

    monkeypatch.setattr(connection, "request", answer)
    await require_memory(connection)
    with pytest.raises(ConfigError, match="may store 7 bytes"):
        await require_memory(connection)
    with pytest.raises(NotConnected, match="code 10008"):
        await require_memory(connection)
    await connection.close()
