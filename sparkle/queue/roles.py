"""What each role may send and hear on the bus: the least that its work needs. Strings only; knows no server.

A subject says whose it is, so that permissions on subjects keep regions and workers apart. Answers come to an
inbox named after the user's nkey: under the common `_INBOX` each could read all. Nobody in SPARKLE may use
the forms of JetStream's API that name a subject in the body, where no permission sees it: they read all.
Nobody has `allow_responses` either: whoever sends a message to himself may then answer wherever it says.

No permission sees where the server itself is told to answer, so a tenant could have it write to another's
subjects. Hence each tenant whose programs connect is an account of its own, into which comes what is its own,
and out of which goes no more. Gateways and workers are the operator's programs and share the account SPARKLE.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from sparkle.errors import ConfigError
from sparkle.queue.bus_access import inbox_of, inboxes_of, workers_of
from sparkle.schemas import subjects
from sparkle.schemas.names import require_name
from sparkle.schemas.priority import PriorityClass

_PUBLIC_KEY = re.compile("U[A-Z2-7]{55}")


class Role(StrEnum):
    """Who connects."""

    WORKER = "worker"  #: answers a region's jobs; has a name
    PRODUCER = "producer"  #: submits one tenant's jobs; has the tenant's name
    GATEWAY = "gateway"  #: submits the jobs of all tenants of a region
    OPERATOR = "operator"  #: declares streams, looks at counts; reads no content
    GATEWAY_METER = "gateway-meter"  #: the gateway's other connection: keys, allowances, usage records
    OPERATOR_METER = "operator-meter"  #: administers tenants and keys


METER_ROLES = frozenset({Role.GATEWAY_METER, Role.OPERATOR_METER})
"""Users of the account METER; all others are SPARKLE's."""

CONTENT = "SPARKLE"
"""The account that has the content."""

NAMED_ROLES = frozenset({Role.WORKER, Role.PRODUCER})
"""A worker's name and a producer's tenant are part of their subjects."""


@dataclass(frozen=True, slots=True)
class Permissions:
    """Subjects; whatever is not here is refused."""

    publish: tuple[str, ...]
    subscribe: tuple[str, ...]


def user(role: Role, nkey: str, *, region: str, name: str = "") -> dict[str, object]:
    """The user's entry in the configuration of a server, as JSON has it.

    `nkey` is the public half; `name` the worker's or the tenant's. Raises ConfigError.
    """
    if not _PUBLIC_KEY.fullmatch(nkey):
        raise ConfigError(
            "nkey is no user's public key, 56 letters and digits from U on: `sparkle topology key FILE` "
            "shows the one that it makes"
        )
    require_name("region", region)
    if role in NAMED_ROLES:
        require_name("name", name)
    elif name:
        raise ConfigError(f"name is given but a {role} has none; leave it out")
    inbox = inbox_of(nkey, workers_of(region) if role is Role.WORKER else "")
    may = permissions(role, inbox, region=region, name=name)
    return {
        "nkey": nkey,
        "permissions": {"publish": list(may.publish), "subscribe": list(may.subscribe)},
    }


def tenant_account(nkey: str, *, region: str, name: str) -> dict[str, object]:
    """The account of a tenant whose programs connect, with its first user. Raises ConfigError."""
    entry = user(Role.PRODUCER, nkey, region=region, name=name)
    may = _producer("", region, name)
    goes_out = [{"service": {"account": CONTENT, "subject": subject}} for subject in may.publish[1:]]
    comes_in = [{"stream": {"account": CONTENT, "subject": subject}} for subject in may.subscribe[1:]]
    return {"users": [entry], "imports": [*goes_out, *comes_in]}


def tenant_exports() -> list[dict[str, str]]:
    """What tenants' accounts may import out of the one that has the content; each imports its own alone."""
    may = _producer("", "*", "*")
    services = [{"service": subject} for subject in may.publish[1:]]
    return [*services, *({"stream": subject} for subject in may.subscribe[1:])]


def permissions(role: Role, inbox: str, *, region: str, name: str = "") -> Permissions:
    """What a role may do whose answers come to `inbox`."""
    # its own inbox as well: the watchdog listens for its own echo
    own = f"{inbox}.>"
    match role:
        case Role.WORKER:
            return _worker(own, region, name)
        case Role.PRODUCER:
            return _producer(own, region, name)
        case Role.GATEWAY:
            return _producer(own, region, "*")
        case Role.OPERATOR:
            return _operator(own, region)
        case Role.GATEWAY_METER:
            return Permissions(
                publish=(
                    own,
                    "$KV.meter.account.*",
                    "$JS.API.DIRECT.GET.KV_meter",
                    "$JS.API.DIRECT.GET.KV_meter.>",
                    f"$JS.API.DIRECT.GET.{subjects.USAGE_STREAM}",
                ),
                subscribe=(own, "meter.changed.tenant.*"),
            )
        case Role.OPERATOR_METER:
            return Permissions(publish=(own, "$KV.meter.>", "$JS.API.>"), subscribe=(own,))


def _worker(own: str, region: str, name: str) -> Permissions:
    jobs, results, control, answered = subjects.STREAMS
    consumers = [subjects.consumer(region, priority) for priority in PriorityClass]
    return Permissions(
        publish=(
            own,
            # whether the account may store nothing on a disk
            "$JS.API.INFO",
            *(f"$JS.API.CONSUMER.MSG.NEXT.{jobs}.{consumer}" for consumer in consumers),
            *(f"$JS.ACK.{jobs}.{consumer}.>" for consumer in consumers),
            # where nobody answers for one: whether it is gone, or has no leader yet
            *(f"$JS.API.CONSUMER.INFO.{jobs}.{consumer}" for consumer in consumers),
            # after a lost connection: whether the stream is still the one that a lease is of
            f"$JS.API.STREAM.INFO.{jobs}",
            f"$JS.API.DIRECT.GET.{results}.{subjects.result('*', '*')}",
            f"$JS.API.DIRECT.GET.{control}.{subjects.cancel('*', '*')}",
            # how far an answer has come: its producer is asked where chunks go, or it is stored
            f"$JS.API.DIRECT.GET.{answered}.{subjects.answered('*', '*')}",
            subjects.answered("*", "*"),
            subjects.reply("*", "*"),
            subjects.result("*", "*"),
            subjects.usage(region, "*", "*"),
            subjects.heartbeat(region, name),
            # never wider: what goes to another region's worker leaves the region
            subjects.offer(region, "*"),
            subjects.will(region, "*"),
            f"{inboxes_of(workers_of(region))}.>",
        ),
        subscribe=(
            own,
            subjects.bell(region),
            subjects.cancel("*", "*"),
            subjects.end_conversation("*", "*"),
            subjects.resend(name),
            subjects.drain(region, name),
            subjects.told("*", "*", "*"),
            subjects.offer(region, name),
            # the heir of its will is one of those that are there
            subjects.heartbeat(region),
            subjects.will(region, name),
        ),
    )


def _producer(own: str, region: str, tenant: str) -> Permissions:
    return Permissions(
        publish=(
            own,
            f"jobs.{region}.*.{tenant}.*",
            subjects.cancel(tenant, "*"),
            subjects.end_conversation(tenant, "*"),
            # whoever asks: the chunks go to the job's own tenant alone
            subjects.resend("*"),
            # a worker asks which tokens of an answer it has
            subjects.told(tenant, "*", "*"),
            f"$JS.API.DIRECT.GET.{subjects.RESULTS_STREAM}.{subjects.result(tenant, '*')}",
        ),
        subscribe=(own, subjects.reply(tenant, "*"), subjects.heartbeat(region)),
    )


def _operator(own: str, region: str) -> Permissions:
    declares = [
        f"$JS.API.STREAM.{verb}.{stream}" for verb in ("CREATE", "UPDATE") for stream in subjects.STREAMS
    ]
    return Permissions(
        publish=(
            own,
            "$JS.API.INFO",
            "$JS.API.STREAM.NAMES",
            *(f"$JS.API.STREAM.INFO.{stream}" for stream in subjects.STREAMS),
            *declares,
            f"$JS.API.CONSUMER.INFO.{subjects.JOBS_STREAM}.*",
            f"$JS.API.CONSUMER.CREATE.{subjects.JOBS_STREAM}.*",
            subjects.drain(region, "*"),
        ),
        subscribe=(own, subjects.heartbeat(region), "$JS.EVENT.ADVISORY.>"),
    )
