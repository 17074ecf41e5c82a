"""A nats-server with the configuration that is shipped: certificates, nkeys, a user for each role."""

from __future__ import annotations

import json
import signal
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from sparkle.queue.bus_access import BusAccess, inbox_of, workers_of
from sparkle.queue.connection import Connection, ConnectionSettings
from sparkle.queue.nkey import write_seed
from sparkle.queue.roles import METER_ROLES, Role, tenant_account, user
from sparkle.queue.server_config import ServerSettings, server_config
from sparkle.queue.server_process import ServerProcess
from sparkle.queue.topology import TopologySettings
from tests.certificates import Authority

HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class BusUser:
    """One user: its role, its files, its key."""

    access: BusAccess
    nkey: str
    group: str

    @property
    def inbox(self) -> str:
        """Where its answers come to."""
        return inbox_of(self.nkey, self.group)


class GuardedBus:
    """Users and certificates in a folder, and the files that a server is given."""

    def __init__(self, folder: Path, who: Sequence[tuple[Role, str]], *, region: str) -> None:
        """`who`: each user's role and name, where it has one."""
        self.folder = folder
        self.users: dict[str, BusUser] = {}
        tls = folder / "tls"
        tls.mkdir()
        self.clients, self.servers = Authority(tls, "clients"), Authority(tls, "servers")
        self.servers.sign("server")
        tenants: dict[str, object] = {}
        entries: dict[bool, list[str]] = {False: [], True: []}
        for role, name in who:
            known_as = name or role.value
            group = workers_of(region) if role is Role.WORKER else ""
            self.users[known_as] = made = self._make_user(known_as, group)
            if role is Role.PRODUCER:
                tenants[f"TENANT_{name}"] = tenant_account(made.nkey, region=region, name=name)
            else:
                entry = user(role, made.nkey, region=region, name=name)
                entries[role in METER_ROLES].append(json.dumps(entry))
        (folder / "tenants.conf").write_text(json.dumps(tenants)[1:-1])
        for is_meter, file in ((False, "users.conf"), (True, "meter-users.conf")):
            listed = "\n".join(entries[is_meter])
            (folder / file).write_text(f"users: [\n{listed}\n]\n")
        self.url = ""
        self._opened: list[Connection] = []

    def _make_user(self, known_as: str, group: str) -> BusUser:
        seed = self.folder / f"{known_as}.seed"
        nkey = write_seed(seed)
        cert_file, key_file = self.clients.sign(known_as)
        access = BusAccess(seed_file=seed, ca_file=self.servers.file, cert_file=cert_file, key_file=key_file)
        return BusUser(access, nkey, group)

    async def connect(self, known_as: str, access: BusAccess | None = None) -> Connection:
        """Connect as this user, or with what `access` shows instead."""
        settings = ConnectionSettings(
            url=self.url,
            name=known_as,
            access=access or self.users[known_as].access,
            inbox_group=self.users[known_as].group,
            connect_timeout_s=5.0 if access is None else 2.0,
            request_timeout_s=2.0,
        )
        connection = await Connection.open(settings)
        self._opened.append(connection)
        return connection

    async def close(self) -> None:
        """End every connection that a test has left, which would look for its server for ever."""
        for connection in self._opened:
            await connection.close()


@asynccontextmanager
async def guarded_bus(
    folder: Path, who: Sequence[tuple[Role, str]], *, region: str
) -> AsyncGenerator[GuardedBus]:
    """The server, running, with nothing declared yet."""
    bus = GuardedBus(folder, who, region=region)
    settings = ServerSettings(
        name="n1", folder=folder, state=folder / "state", listen=f"{HOST}:-1", monitor=f"{HOST}:-1"
    )
    config = server_config(settings, TopologySettings(regions=region))
    process = ServerProcess(folder, start_timeout_s=20.0)
    port = await process.start(f"{config}ports_file_dir: {json.dumps(str(folder))}\n")
    try:
        bus.url = f"tls://{HOST}:{port}"
        yield bus
    finally:
        await bus.close()
        await process.end(signal.SIGTERM)
