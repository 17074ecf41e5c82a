"""The shipped configuration, taken by real servers: as one, as three, and what it leaves no room for."""

from __future__ import annotations

import asyncio
import json
import signal
import ssl
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from sparkle.errors import SparkleError
from sparkle.producers.client import Client
from sparkle.producers.settings import ClientSettings
from sparkle.queue import topology
from sparkle.queue.api import ask
from sparkle.queue.connection import Connection
from sparkle.queue.roles import Role
from sparkle.queue.server_config import ServerSettings, server_config
from sparkle.queue.server_process import ServerProcess
from sparkle.queue.topology import Outcome, TopologySettings
from sparkle.schemas.job import Job
from tests.certificates import Authority
from tests.conftest import REGION
from tests.guarded_bus import HOST, GuardedBus, guarded_bus
from tests.nats_cluster import free_ports
from tests.worker_at_work import at_work

THREE = TopologySettings(regions=REGION, replicas=3)
NOT_IN_FILES, NO_MORE_MEMORY = 10047, 10028


@pytest.mark.usefixtures("nats_binary")
async def test_there_is_room_for_the_streams_and_for_no_other(tmp_path: Path) -> None:
    async with guarded_bus(tmp_path, ((Role.OPERATOR, ""),), region=REGION) as bus:
        operator = await bus.connect("operator")
        config = {"name": "CONTROL", "subjects": ["ctl.cancel.*.*"], "storage": "memory"}
        on_disk = await ask(operator, "STREAM.CREATE.CONTROL", {**config, "storage": "file"})
        assert on_disk.code == NOT_IN_FILES
        changes = await topology.apply(operator, TopologySettings(regions=REGION))
        assert {change.outcome for change in changes} == {Outcome.CREATED}
        grown = await ask(operator, "STREAM.UPDATE.CONTROL", {**config, "max_bytes": 1024**3})
        assert grown.code == NO_MORE_MEMORY
        await operator.close()


@asynccontextmanager
async def three_nodes(bus: GuardedBus) -> AsyncGenerator[list[int]]:
    """A cluster of three on the loopback; the ports where they listen for one another."""
    tls = bus.folder / "tls"
    nodes_ca = Authority(tls, "nodes")
    nodes_ca.sign("node")
    routes = free_ports(HOST)
    urls: list[str] = []
    async with AsyncExitStack() as stack:
        for number, route in enumerate(routes):
            state = bus.folder / f"state-{number}"
            state.mkdir()
            settings = ServerSettings(
                name=f"n{number}",
                nodes=tuple(f"{HOST}:{port}" for port in routes),
                folder=bus.folder,
                state=state,
                listen=f"{HOST}:-1",
                routes=f"{HOST}:{route}",
                monitor=f"{HOST}:-1",
            )
            # users beside each one's own configuration
            for users in bus.folder.glob("*.conf"):
                (state / users.name).write_text(users.read_text())
            process = ServerProcess(state, start_timeout_s=20.0)
            config = f"{server_config(settings, THREE)}ports_file_dir: {json.dumps(str(state))}\n"
            urls.append(f"tls://{HOST}:{await process.start(config)}")
            stack.push_async_callback(process.end, signal.SIGKILL)
        stack.push_async_callback(bus.close)
        bus.url = ",".join(urls)
        yield list(routes)


@pytest.mark.usefixtures("nats_binary")
async def test_three_nodes_trust_one_another_and_no_clients_certificate(tmp_path: Path) -> None:
    who = ((Role.OPERATOR, ""), (Role.WORKER, "w1"), (Role.PRODUCER, "acme"))
    bus = GuardedBus(tmp_path, who, region=REGION)
    async with three_nodes(bus) as routes:
        operator = await bus.connect("operator")
        changes = await _until_applied(operator)
        assert {change.outcome for change in changes} == {Outcome.CREATED}
        assert {stream.replicas for stream in (await topology.show(operator)).streams} == {3}
        await operator.close()
        # a tenant's account reaches the others', whichever nodes they are connected to
        settings = ClientSettings(nats=bus.url, region=REGION, tenant="acme", bus=bus.users["acme"].access)
        async with (
            at_work(bus.url, name="w1", bus=bus.users["w1"].access),
            await Client.open(settings) as client,
        ):
            for _ in range(4):
                handle = await client.submit(Job(prompt="hello", max_tokens=6))
                tokens = [token for chunk in [chunk async for chunk in handle] for token in chunk.tokens]
                assert tokens == (await handle.result()).tokens
        # a client's certificate is signed by another authority than the nodes'
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(tmp_path / "tls" / "nodes-ca.pem")
        shown = bus.users["operator"].access
        assert shown.cert_file is not None
        context.load_cert_chain(shown.cert_file, shown.key_file)
        reader, writer = await asyncio.open_connection(HOST, routes[0], ssl=context)
        with pytest.raises(ssl.SSLError, match="UNKNOWN_CA"):
            await reader.readline()
        writer.close()


async def _until_applied(operator: Connection) -> list[topology.Change]:
    """Declare the streams as soon as the nodes have found one another."""
    async with asyncio.timeout(60.0):
        while True:
            try:
                return await topology.apply(operator, THREE)
            except SparkleError:
                await asyncio.sleep(0.05)
