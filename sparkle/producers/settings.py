"""Settings of a client: where the queue is and who asks. Knows no connection."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sparkle.config import load, require_positive
from sparkle.producers.outbox import OutboxTiming
from sparkle.queue.bus_access import BusAccess
from sparkle.queue.connection import ConnectionSettings
from sparkle.queue.key_ring import EncryptionSettings
from sparkle.schemas.names import require_name
from sparkle.schemas.priority import ServiceRates


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """Who asks, where, and how patiently. Read from `[client]` of a file and from SPARKLE_CLIENT_<NAME>."""

    nats: str = "nats://127.0.0.1:4222"
    """Servers, comma-separated."""

    region: str = "local"
    """Where jobs may be served."""

    tenant: str = "default"
    """Whose jobs they are."""

    connect_timeout_s: float = 5.0
    """How long to look for a server before NotConnected."""

    publish_timeout_s: float = 3.0
    """How long one try to publish waits for the queue's answer."""

    redeclare_wait_s: float = 8.0
    """How long after a reconnect a missing stream may take to be declared again."""

    max_waiting: int = 10_000
    """Jobs of one tenant that may wait until a worker begins them; any more are refused."""

    conversation_s: float = 600.0
    """How long after an answer its worker is taken to hold the conversation's state."""

    bus: BusAccess = field(default_factory=BusAccess)
    """Who it is on the bus."""

    encryption: EncryptionSettings = field(default_factory=EncryptionSettings)
    """The tenant's keys, to seal its jobs with."""

    rates: ServiceRates = field(default_factory=ServiceRates)
    """How fast a worker is: makes a job's priority class of its length."""

    timing: OutboxTiming = field(default_factory=OutboxTiming)
    """When jobs are looked up and published again."""

    def __post_init__(self) -> None:
        for name in ("region", "tenant"):
            require_name(name, getattr(self, name))
        names = "connect_timeout_s publish_timeout_s redeclare_wait_s max_waiting conversation_s"
        require_positive(self, *names.split())

    def connection(self, name: str) -> ConnectionSettings:
        """The settings of a connection that the server's monitoring shows as `name`."""
        return ConnectionSettings(
            url=self.nats, name=name, access=self.bus, connect_timeout_s=self.connect_timeout_s
        )


def read_settings(
    file: Path | None,
    environ: Mapping[str, str],
    *,
    nats: str | None = None,
    region: str | None = None,
    tenant: str | None = None,
) -> ClientSettings:
    """The client's tables of the file, then SPARKLE_CLIENT_… and so on, then what is not None.

    Raises ConfigError.
    """
    flags = {
        "nats": nats,
        "region": region,
        "tenant": tenant,
        "bus": load(BusAccess, "bus", file=file, environ=environ, flags={}),
        "encryption": load(EncryptionSettings, "encryption", file=file, environ=environ, flags={}),
        "rates": load(ServiceRates, "rates", file=file, environ=environ, flags={}),
        "timing": load(OutboxTiming, "outbox", file=file, environ=environ, flags={}),
    }
    return load(ClientSettings, "client", file=file, environ=environ, flags=flags)
