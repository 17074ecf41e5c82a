"""The server of our own: it starts, says why when it cannot, and leaves nothing behind."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from pathlib import Path

import pytest

from sparkle.errors import ConfigError, NotConnected
from sparkle.queue import server_process
from sparkle.queue.connection import Connection, ConnectionSettings
from sparkle.queue.local import LocalServer, LocalServerSettings


def files(folder: Path) -> list[Path]:
    """What the servers of this test have left there."""
    return list(folder.iterdir())


def port(server: LocalServer) -> int:
    return int(server.url.rpartition(":")[2])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the server's files go in this test."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


async def test_it_listens_on_the_loopback_alone_and_takes_eight_megabytes(nats_server: LocalServer) -> None:
    assert nats_server.url.startswith("nats://127.0.0.1:")
    connection = await Connection.open(ConnectionSettings(url=nats_server.url))
    assert connection.max_payload_bytes == 8 * 1024 * 1024
    await connection.close()


async def test_its_files_are_private_and_gone_with_it(nats_binary: None, folder: Path) -> None:
    async with LocalServer() as server:
        (own,) = files(folder)
        assert stat.S_IMODE(os.stat(own).st_mode) == 0o700
        pid = server.pid
        assert pid is not None
        # a Ctrl-C for us is none for the server
        assert os.getpgid(pid) != os.getpgid(0)
    assert files(folder) == []
    assert server.pid is None
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.parametrize("how", ["stop", "kill"])
async def test_it_comes_back_at_the_same_address(nats_binary: None, folder: Path, how: str) -> None:
    async with LocalServer() as server:
        url = server.url
        await (server.stop() if how == "stop" else server.kill())
        assert files(folder) == []
        await server.start()
        assert server.url == url
        connection = await Connection.open(ConnectionSettings(url=url))
        await connection.close()


async def test_stopping_twice_and_starting_twice_is_no_error(nats_binary: None) -> None:
    server = LocalServer()
    await server.stop()
    await server.start()
    pid = server.pid
    await server.start()
    assert server.pid == pid
    await server.stop()
    await server.stop()


async def test_a_taken_port_is_said_so(nats_server: LocalServer, folder: Path) -> None:
    second = LocalServer(LocalServerSettings(port=port(nats_server)))
    with pytest.raises(
        NotConnected, match=r"ended with code 1 .*address already in use.*choose another one, 0 "
    ):
        await second.start()
    assert files(folder) == []
    assert second.pid is None


async def test_a_server_that_says_nothing_is_given_up(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    silent = folder / "nats-server"
    silent.write_text("#!/bin/sh\nexec sleep 60\n")
    silent.chmod(0o700)
    monkeypatch.setattr(server_process, "find_binary", lambda: silent)
    server = LocalServer(LocalServerSettings(start_timeout_s=0.2))
    with pytest.raises(NotConnected, match=r"not ready within 0.2 s: it said nothing"):
        await server.start()
    assert server.pid is None


async def test_without_a_binary_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere(name: str, *, path: str | None) -> None:
        return None

    monkeypatch.setattr(shutil, "which", nowhere)
    with pytest.raises(ConfigError, match=r"sparkle-inference\[local\]"):
        await LocalServer().start()


async def test_a_folder_is_made_where_there_is_none_and_stays(nats_binary: None, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "keep"
    async with LocalServer(LocalServerSettings(folder=folder)):
        pass
    assert (folder / "jetstream").is_dir()
    in_the_way = tmp_path / "file"
    in_the_way.touch()
    with pytest.raises(ConfigError, match="cannot be made"):
        await LocalServer(LocalServerSettings(folder=in_the_way / "keep")).start()
