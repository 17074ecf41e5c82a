"""The texts for nats-servers: what they always hold, and what is refused. Real servers take them too."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from sparkle.cli import app
from sparkle.errors import ConfigError
from sparkle.queue.local import LocalServer
from sparkle.queue.roles import (
    METER_ROLES,
    NAMED_ROLES,
    Permissions,
    Role,
    permissions,
    tenant_account,
    tenant_exports,
    user,
)
from sparkle.queue.server_config import ServerSettings, server_config
from sparkle.queue.streams import TopologySettings, reserved_bytes

NKEY = "UCFIRY65OQE7DFP5KLNS2PF2LVZMUZYJX4OZIEQ36N2IQANUB5XVZ45L"
NODES = ("a", "b", "c:77")


def config(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["topology", "config", *arguments], env={"COLUMNS": "200"})


@pytest.mark.parametrize(
    "text",
    [
        server_config(ServerSettings(name="n1"), TopologySettings()),
        server_config(ServerSettings(name="n1", nodes=NODES), TopologySettings(replicas=3)),
        LocalServer()._config(),  # pyright: ignore[reportPrivateUsage]
    ],
)
def test_no_server_of_ours_writes_content_down(text: str) -> None:
    lines = [line.strip() for line in text.splitlines()]
    for needed in ("debug: false", "trace: false", "max_payload: 8388608"):
        assert lines.count(needed) == 1
    content = re.search(r"SPARKLE \{(.*?)\n  \}", text, re.DOTALL)
    assert content is not None
    assert re.search(r"max_mem: \d+, max_file: 0 \}", content[1])
    # nothing leaves but what a tenant's account imports, each its own
    exports = re.search(r"exports: (\[.*\])", content[1])
    assert exports is not None
    assert json.loads(exports[1]) == tenant_exports()
    for word in ("log_file", "logtime", "trace_headers", "prof_port", "gateway", "leafnodes", "mappings"):
        assert word not in text


def test_memory_is_what_the_streams_reserve_and_every_copy_counts() -> None:
    one = reserved_bytes(TopologySettings())
    assert one == (512 + 256 + 16 + 64) * 1024 * 1024
    text = server_config(ServerSettings(name="n1", nodes=NODES), TopologySettings(replicas=3))
    assert f"max_mem: {one}, max_file: 1073741824" in text
    assert f"max_mem: {3 * one}, max_file: 0" in text
    assert 'routes: [ "nats://a:6222", "nats://b:6222", "nats://c:77" ]' in text
    assert "cluster" not in server_config(ServerSettings(name="n1"), TopologySettings())


@pytest.mark.parametrize(
    ("server", "replicas", "said"),
    [
        ({"name": "N1"}, 1, "name is 'N1' but must be"),
        ({"name": "n1", "nodes": ("a", "b")}, 1, "nodes are 2 but must be 3 or more"),
        ({"name": "n1"}, 3, "replicas is 3 but there are 1 nodes"),
        ({"name": "n1", "meter_max_bytes": 0}, 1, "meter_max_bytes is 0"),
    ],
)
def test_a_server_that_cannot_be_is_refused(server: dict[str, Any], replicas: int, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        server_config(ServerSettings(**server), TopologySettings(replicas=replicas))


def of(role: Role) -> Permissions:
    return permissions(role, "_INBOX_U1", region="eu", name="w1" if role in NAMED_ROLES else "")


@pytest.mark.parametrize("role", Role)
def test_no_role_hears_what_is_not_its_own(role: Role) -> None:
    may = of(role)
    assert "_INBOX_U1.>" in may.publish
    assert "_INBOX_U1.>" in may.subscribe
    heard = [subject for subject in may.subscribe if subject != "_INBOX_U1.>"]
    for subject in heard:
        # no subject of content but one's own tenant's replies; nobody hears the common inbox, or all of it
        assert not subject.startswith(("_INBOX", ">", "*", "jobs", "result", "usage", "$KV", "$SYS"))
        assert not subject.startswith("told") or role is Role.WORKER
        assert not subject.startswith("reply") or role in (Role.PRODUCER, Role.GATEWAY)
    if role not in METER_ROLES:
        for subject in may.publish:
            # a subject in the body is seen by no permission
            assert not re.fullmatch(r"\$JS\.API\.(DIRECT\.GET\.\w+|STREAM\.MSG\..*|>)", subject)
            assert not re.match(r"\$JS\.API\.(STREAM|CONSUMER)\.(DELETE|PURGE|SNAPSHOT)", subject)


def test_a_users_entry_is_printed_as_a_server_takes_it() -> None:
    printed = config("--role", "producer", "--name", "acme", "--region", "eu", "--nkey", NKEY)
    assert printed.exit_code == 0
    comment, _, entry = printed.output.partition("\n")
    assert comment == "# producer acme eu"
    # a tenant's programs are not users among others: they have an account of their own
    account = json.loads("{" + entry + "}")
    assert account == {"TENANT_acme": tenant_account(NKEY, region="eu", name="acme")}
    (first,) = account["TENANT_acme"]["users"]
    assert first == user(Role.PRODUCER, NKEY, region="eu", name="acme")
    worker = config("--role", "worker", "--name", "w1", "--region", "eu", "--nkey", NKEY)
    assert json.loads(worker.output.partition("\n")[2]) == user(Role.WORKER, NKEY, region="eu", name="w1")


def test_a_tenants_account_imports_what_names_the_tenant_and_is_exported() -> None:
    exported = [(kind, subject) for one in tenant_exports() for kind, subject in one.items()]
    imports: Any = tenant_account(NKEY, region="eu", name="acme")["imports"]
    imported = [(kind, place["subject"]) for one in imports for kind, place in one.items()]
    assert len(imported) == len(exported)
    for (kind, mine), (kind_of, everyones) in zip(imported, exported, strict=True):
        assert kind == kind_of
        # of everybody only heartbeats, and a worker's desk that sends chunks to the job's own tenant
        assert "acme" in mine.split(".") or mine in ("hb.eu.*", "ctl.*.resend")
        pairs = zip(mine.split("."), everyones.split("."), strict=True)
        assert all(have in ("*", name) for name, have in pairs)


def test_a_servers_file_is_printed_with_the_topologys_sizes() -> None:
    flags = [flag for node in NODES for flag in ("--node", node)]
    printed = CliRunner().invoke(
        app,
        ["topology", "config", "--role", "server", "--name", "n1", *flags],
        env={"SPARKLE_TOPOLOGY_REPLICAS": "3", "SPARKLE_TOPOLOGY_JOBS_MAX_BYTES": "1048576"},
    )
    wanted = TopologySettings(replicas=3, jobs_max_bytes=1024 * 1024)
    assert printed.output.strip() == server_config(ServerSettings(name="n1", nodes=NODES), wanted).strip()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--role", "boss"), "role is 'boss' but must be one of server, worker, producer"),
        (("--role", "worker", "--name", "w1"), "nkey is no user's public key"),
        (("--role", "worker", "--name", "w1", "--nkey", NKEY[:-1]), "nkey is no user's public key"),
        (("--role", "worker", "--name", "w1", "--nkey", f"{NKEY[:-1]}*"), "nkey is no user's public key"),
        (("--role", "worker", "--nkey", NKEY), "name is '' but must be"),
        (("--role", "producer", "--name", "*", "--nkey", NKEY), "name is '*' but must be"),
        (("--role", "producer", "--name", "a.b", "--nkey", NKEY), "name is 'a.b' but must be"),
        (("--role", "producer", "--name", "a", "--region", ">", "--nkey", NKEY), "region is '>' but must be"),
        (("--role", "gateway", "--name", "w1", "--nkey", NKEY), "name is given but a gateway has none"),
        (("--role", "gateway", "--node", "a", "--nkey", NKEY), "node is given but only a server"),
        (("--role", "server", "--name", "n1", "--nkey", NKEY), "nkey is given but a server has none"),
    ],
)
def test_what_no_server_could_use_is_refused_in_a_sentence(arguments: tuple[str, ...], said: str) -> None:
    refused = config(*arguments)
    assert refused.exit_code == 2
    assert said in refused.output
