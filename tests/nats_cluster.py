"""Three nats-servers on the loopback that are one cluster: to kill, freeze and start again one by one."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Self

from sparkle.errors import SparkleError
from sparkle.queue import topology
from sparkle.queue.api import ApiAnswer, ask
from sparkle.queue.connection import Connection, ConnectionSettings
from sparkle.queue.server_config import LIMITS, accounts
from sparkle.queue.server_process import ServerProcess
from sparkle.queue.topology import TopologySettings
from sparkle.schemas import subjects

NUM_NODES = 3
MAX_MEMORY_BYTES = 1024 * 1024 * 1024
MAX_FILE_BYTES = 1024 * 1024 * 1024
"""Of each node; the accounts' limits count every copy."""

START_S = 20.0
WHOLE_S = 60.0
_POLL_S = 0.02


class Node:
    """One server of a cluster, always at the same addresses. Its folder stays while it is down."""

    def __init__(self, name: str, host: str, folder: Path) -> None:
        self.name = name
        self.host = host
        self.port, self.route_port, self.monitor_port = free_ports(host)
        self._folder = folder
        self._config = ""
        self._process = ServerProcess(folder, start_timeout_s=START_S)

    @property
    def url(self) -> str:
        """Where clients connect to this node."""
        return f"nats://{self.host}:{self.port}"

    @property
    def pid(self) -> int | None:
        """Its process id while it runs."""
        return self._process.pid

    @property
    def folder(self) -> Path:
        """All that it writes to a disk."""
        return self._folder

    def join(self, others: Sequence[Node]) -> None:
        """Whom to form a cluster with."""
        routes = [f"nats://{node.host}:{node.route_port}" for node in others if node is not self]
        folder = json.dumps(str(self._folder))
        users = accounts(
            content_users='users: [ { user: "local", password: "local" } ]',
            meter_users='users: [ { user: "meter", password: "meter" } ]',
            max_memory_bytes=NUM_NODES * MAX_MEMORY_BYTES,
            max_file_bytes=NUM_NODES * MAX_FILE_BYTES,
        )
        self._config = f"""
server_name: "{self.name}"
listen: "{self.host}:{self.port}"
http: "{self.host}:{self.monitor_port}"
ports_file_dir: {folder}
cluster {{ name: "sparkle", listen: "{self.host}:{self.route_port}", routes: {json.dumps(routes)} }}
jetstream {{ store_dir: {folder}, max_mem: {MAX_MEMORY_BYTES}, max_file: {MAX_FILE_BYTES} }}
no_auth_user: "local"
{LIMITS}{users}"""

    async def start(self) -> None:
        """Start it; it takes connections then, and may not have found the others yet."""
        if self.pid is None:
            await self._process.start(self._config)

    async def stop(self) -> None:
        """End it as an operator would: it hands its leaderships over."""
        await self._process.end(signal.SIGTERM)

    async def kill(self) -> None:
        """End it as a crash would."""
        await self._process.end(signal.SIGKILL)

    def freeze(self) -> None:
        """Stop it where it stands."""
        self._process.freeze()

    def thaw(self) -> None:
        """Let it go on."""
        self._process.thaw()

    async def monitor(self, path: str) -> dict[str, Any]:
        """What its monitoring says under `path`, as `/jsz`. Raises OSError while it is down."""
        reader, writer = await asyncio.open_connection(self.host, self.monitor_port)
        try:
            writer.write(f"GET {path} HTTP/1.0\r\nHost: {self.host}\r\n\r\n".encode())
            answer = await reader.read()
        finally:
            writer.close()
        said: dict[str, Any] = json.loads(answer.partition(b"\r\n\r\n")[2])
        return said


class NatsCluster:
    """`async with NatsCluster() as cluster`: three nodes that know each other, with nothing declared yet."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="sparkle-cluster-"))
        host = own_host()
        self.nodes: list[Node] = []
        for number in range(1, NUM_NODES + 1):
            folder = self._folder / f"n{number}"
            folder.mkdir()
            self.nodes.append(Node(f"n{number}", host, folder))
        for node in self.nodes:
            node.join(self.nodes)

    @property
    def url(self) -> str:
        """All nodes, comma-separated, as clients and workers take it."""
        return ",".join(node.url for node in self.nodes)

    async def start_all(self) -> None:
        """Start every node that is down, and wait until the cluster has a leader and all its members."""
        await asyncio.gather(*(node.start() for node in self.nodes))
        await _until(self._is_joined, "the nodes have not found each other")

    async def kill_all(self) -> None:
        """All nodes crash at once: every message is gone, what was declared is not."""
        await asyncio.gather(*(node.kill() for node in self.nodes))

    async def connect(self, node: Node | None = None) -> Connection:
        """A connection to `node`, or to any."""
        url = self.url if node is None else node.url
        return await Connection.open(ConnectionSettings(url=url, name="test"))

    async def apply(self, settings: TopologySettings | None = None) -> None:
        """Declare the streams, three copies of each; as often as it takes where nodes are slow to agree."""

        async def is_applied() -> bool:
            connection = await self.connect()
            try:
                await topology.apply(connection, settings or TopologySettings(replicas=NUM_NODES))
            finally:
                await connection.close()
            return True

        await _until(is_applied, "the streams could not be declared")

    async def leader(self, stream: str = subjects.JOBS_STREAM) -> Node:
        """The node that leads a stream; waits while there is none."""
        found: list[Node] = []

        async def is_led() -> bool:
            name = (await self._ask(f"STREAM.INFO.{stream}")).table("cluster").get("leader")
            found[:] = [node for node in self.nodes if node.name == name and node.pid is not None]
            return bool(found)

        await _until(is_led, f"{stream} has no leader")
        return found[0]

    async def until_whole(self) -> None:
        """Wait until all nodes have joined and hold all that the streams' leaders hold."""
        await _until(self._is_joined, "the nodes have not found each other")
        await _until(self._is_current, "the streams have fewer than three copies")

    async def _is_joined(self) -> bool:
        for node in self.nodes:
            meta = (await node.monitor("/jsz")).get("meta_cluster", {})
            others = [other for other in meta.get("replicas", []) if other["current"]]
            if meta.get("leader") == node.name and len(others) == NUM_NODES - 1:
                return True
        return False

    async def _is_current(self) -> bool:
        streams = [f"STREAM.INFO.{stream}" for stream in subjects.STREAMS]
        # consumers have leaders and copies of their own
        listed: Any = (await self._ask(f"CONSUMER.NAMES.{subjects.JOBS_STREAM}")).fields.get("consumers")
        consumers = [f"CONSUMER.INFO.{subjects.JOBS_STREAM}.{name}" for name in listed or ()]
        for call in (*streams, *consumers):
            copies: Any = (await self._ask(call)).table("cluster").get("replicas", [])
            # `current` alone can be true of one that has not heard of the leader's last messages
            if [bool(copy["current"]) and not copy.get("lag") for copy in copies] != [True, True]:
                return False
        return True

    async def _ask(self, call: str) -> ApiAnswer:
        connection = await self.connect()
        try:
            return await ask(connection, call, timeout_s=1.0)
        finally:
            await connection.close()

    async def __aenter__(self) -> Self:
        try:
            await self.start_all()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        for node in self.nodes:
            node.thaw()
        await self.kill_all()
        shutil.rmtree(self._folder, ignore_errors=True)


def own_host() -> str:
    """A loopback address that no other process uses: a port stays ours while its server is down.

    Outgoing connections take their ports on 127.0.0.1, and might take one that a killed node comes back to.
    """
    pid = os.getpid()
    return f"127.{1 + pid % 200}.{pid // 200 % 250}.{1 + pid // 50_000 % 250}"


def free_ports(host: str) -> tuple[int, int, int]:
    """Three ports of the system's choice; nobody holds them any more."""
    sockets = [socket.create_server((host, 0)) for _ in range(3)]
    ports = [int(listening.getsockname()[1]) for listening in sockets]
    for listening in sockets:
        listening.close()
    return ports[0], ports[1], ports[2]


async def _until(condition: Callable[[], Awaitable[bool]], otherwise: str) -> None:
    """Wait until it is true."""
    last: Exception | None = None
    try:
        async with asyncio.timeout(WHOLE_S):
            while True:
                # what is asked may be down, or have no leader
                try:
                    if await condition():
                        return
                except (OSError, SparkleError, ValueError) as error:
                    last = error
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        raise AssertionError(f"{otherwise} within {WHOLE_S} s; last error: {last!r}") from None
