"""What a nats-server is told, in its own language: limits, accounts, no trace. Knows no users and no process.

SPARKLE has the content and may store nothing on a disk, METER has counts and no content and may, SYS is the
server's own. Usage records pass out of SPARKLE into METER, as a service, so that whoever sends one hears that
it is stored; METER gets nothing else. A tenant whose programs connect is one of its own: `roles.py`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from sparkle.config import require_positive
from sparkle.errors import ConfigError
from sparkle.queue.roles import tenant_exports
from sparkle.queue.streams import TopologySettings, reserved_bytes
from sparkle.schemas.names import require_name

_ROUTES_PORT = 6222

MAX_PAYLOAD_BYTES = 8 * 1024 * 1024
"""The server warns above this, and a 262,144-token job fits."""

MAX_PENDING_BYTES = 64 * 1024 * 1024
"""What may wait for one client that reads too slowly, before its connection is ended."""

LIMITS = f"""\
# a job of 262,144 tokens fits; the server warns above
max_payload: {MAX_PAYLOAD_BYTES}
# what waits for a client that reads too slowly: beyond, its connection ends, and it asks for what it missed
max_pending: {MAX_PENDING_BYTES}
write_deadline: "10s"
ping_interval: "10s"
ping_max: 2
# either would write prompts and answers to the log
debug: false
trace: false
"""


def accounts(
    *,
    content_users: str,
    meter_users: str,
    max_memory_bytes: int,
    max_file_bytes: int,
    tenants: str = "",
) -> str:
    """The accounts with their users, each given as the lines that stand in its block.

    `tenants` are further accounts, of tenants whose programs connect.
    `max_memory_bytes` and `max_file_bytes` are what all streams of SPARKLE and of METER may reserve, every
    copy counted.
    """
    return f"""\
accounts {{
  SYS {{ }}
  SPARKLE {{
    # no file: the server itself refuses a stream on a disk
    jetstream {{ max_mem: {max_memory_bytes}, max_file: 0 }}
    imports: [ {{ service: {{ account: METER, subject: "usage.>" }} }} ]
    # what a tenant's account may import of this one: each of them imports its own alone
    exports: {json.dumps(tenant_exports())}
    {content_users}
  }}
  METER {{
    jetstream {{ max_mem: 0, max_file: {max_file_bytes} }}
    exports: [ {{ service: "usage.>", accounts: [SPARKLE] }} ]
    {meter_users}
  }}
  {tenants}
}}
system_account: SYS
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """One server of a production queue."""

    name: str
    """What the cluster knows it by."""

    nodes: tuple[str, ...] = ()
    """Hosts of all nodes of the cluster, this one too, with a port where it is not 6222; none: no cluster."""

    folder: Path = Path("/etc/nats")
    """Where certificates lie, in `tls`, and the users beside this file."""

    state: Path = Path("/var/lib/nats")
    """What is declared goes here, and what METER holds; never a message of SPARKLE."""

    listen: str = "0.0.0.0:4222"
    """Where clients connect."""

    routes: str = "0.0.0.0:6222"
    """Where the other nodes connect."""

    monitor: str = "127.0.0.1:8222"
    """Where health checks and metrics are read: subjects and counts, by anybody who reaches it."""

    meter_max_bytes: int = 1024 * 1024 * 1024
    """What METER's streams may take on the disk, on each node."""

    def __post_init__(self) -> None:
        require_name("name", self.name)
        if len(self.nodes) == 2:
            raise ConfigError("nodes are 2 but must be 3 or more: of 2, the loss of one stops the other")
        require_positive(self, "meter_max_bytes")


def server_config(server: ServerSettings, topology: TopologySettings) -> str:
    """The whole configuration of a server that holds these streams. Raises ConfigError."""
    num_nodes = max(1, len(server.nodes))
    if topology.replicas > num_nodes:
        raise ConfigError(
            f"replicas is {topology.replicas} but there are {num_nodes} nodes; name them all with --node"
        )
    memory_bytes = reserved_bytes(topology)
    tls = str(server.folder / "tls")
    users = accounts(
        content_users='include "users.conf"',
        meter_users='include "meter-users.conf"',
        tenants='include "tenants.conf"',
        max_memory_bytes=topology.replicas * memory_bytes,
        max_file_bytes=num_nodes * server.meter_max_bytes,
    )
    return f"""\
server_name: "{server.name}"
listen: "{server.listen}"
# asks nobody who they are: for this machine's own checks and exporters
http: "{server.monitor}"
tls {{
  cert_file: "{tls}/server.pem", key_file: "{tls}/server.key"
  # whoever connects shows a certificate of this authority, before anything else is said
  ca_file: "{tls}/clients-ca.pem", verify: true
  handshake_first: true, min_version: "1.3"
}}
{_cluster(server, tls)}\
# memory is what all streams of SPARKLE may reserve here; the process may grow to twice that
jetstream {{
  store_dir: "{server.state}", max_mem: {memory_bytes}, max_file: {server.meter_max_bytes}
}}
{LIMITS}{users}"""


def _cluster(server: ServerSettings, tls: str) -> str:
    if not server.nodes:
        return ""
    routes = ", ".join(
        f'"nats://{node if ":" in node else f"{node}:{_ROUTES_PORT}"}"' for node in server.nodes
    )
    return f"""\
cluster {{
  name: "sparkle", listen: "{server.routes}"
  tls {{
    # an authority of its own: a client's certificate must not pass for a node's, which hears everything
    cert_file: "{tls}/node.pem", key_file: "{tls}/node.key", ca_file: "{tls}/nodes-ca.pem", verify: true
  }}
  routes: [ {routes} ]
}}
"""
