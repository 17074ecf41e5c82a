"""Settings of metering: where its account is, how long things are waited for. Knows no connection."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sparkle.config import load, require_positive
from sparkle.queue.bus_access import BusAccess
from sparkle.queue.connection_settings import ConnectionSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class MeteringSettings:
    """Read from `[metering]` of a file and from SPARKLE_METERING_<NAME>."""

    nats: str = field(default="nats://meter:meter@127.0.0.1:4222", repr=False)
    """Servers with a user of the metering account, comma-separated; the default is that of `sparkle up`."""

    lease_s: float = 60.0
    """What a gateway has set aside of an allowance counts so long after its last word."""

    record_wait_s: float = 60.0
    """So long after a job's end its usage record is waited for."""

    settle_s: float = 1.0
    """How often the records of ended jobs are looked for."""

    count_s: float = 60.0
    """How often a gateway counts the records of all tenants, also those of jobs that came by no gateway."""

    bus: BusAccess = field(default_factory=BusAccess)
    """Who it is in the metering account, where it is another user than in that of content."""

    def __post_init__(self) -> None:
        require_positive(self, "lease_s", "record_wait_s", "settle_s", "count_s")

    def connection(self, name: str) -> ConnectionSettings:
        """The settings of a connection that the server's monitoring shows as `name`."""
        return ConnectionSettings(url=self.nats, name=name, access=self.bus)


def read_metering(
    file: Path | None, environ: Mapping[str, str], *, nats: str | None = None
) -> MeteringSettings:
    """`[metering]` and `[meter_bus]` of the file, then SPARKLE_METERING_… and so on, then what is not None.

    Raises ConfigError.
    """
    bus = load(BusAccess, "meter_bus", file=file, environ=environ, flags={})
    return load(MeteringSettings, "metering", file=file, environ=environ, flags={"nats": nats, "bus": bus})
