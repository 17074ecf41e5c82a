"""The texts that an operator gives to nats-servers, by role. Knows neither terminal nor server."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from sparkle.config import load
from sparkle.errors import ConfigError
from sparkle.producers.settings import read_settings
from sparkle.queue.roles import Role, tenant_account, user
from sparkle.queue.server_config import ServerSettings, server_config
from sparkle.queue.topology import TopologySettings

SERVER = "server"


def configuration(
    role: str,
    *,
    file: Path | None,
    environ: Mapping[str, str],
    name: str,
    nkey: str,
    region: str | None,
    nodes: tuple[str, ...],
) -> str:
    """A server's file, a user or a tenant's account; `file`, `environ`: settings. Raises ConfigError."""
    if role == SERVER:
        if nkey:
            raise ConfigError("nkey is given but a server has none; leave it out")
        topology = load(TopologySettings, "topology", file=file, environ=environ, flags={})
        return server_config(ServerSettings(name=name, nodes=nodes), topology)
    if role not in set(Role):
        raise ConfigError(f"role is {role!r} but must be one of {', '.join((SERVER, *Role))}")
    if nodes:
        raise ConfigError("node is given but only a server has nodes; leave it out")
    of_region = read_settings(file, environ, region=region).region
    comment = f"# {' '.join(part for part in (role, name, of_region) if part)}"
    if role == Role.PRODUCER:
        account = tenant_account(nkey, region=of_region, name=name)
        return f'{comment}\n"TENANT_{name}": {json.dumps(account, indent=2)}'
    return f"{comment}\n{json.dumps(user(Role(role), nkey, region=of_region, name=name), indent=2)}"
