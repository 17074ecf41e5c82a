"""Settings of metering: where its account is, how long things are waited for. Knows no connection."""

from __future__ import annotations

from dataclasses import dataclass

from sparkle.config import require_positive


@dataclass(frozen=True, slots=True, kw_only=True)
class MeteringSettings:
    """Read from `[metering]` of a file and from SPARKLE_METERING_<NAME>."""

    nats: str = "nats://meter:meter@127.0.0.1:4222"
    """Servers with a user of the metering account, comma-separated; the default is that of `sparkle up`."""

    lease_s: float = 60.0
    """What a gateway has set aside of an allowance counts so long after its last word."""

    record_wait_s: float = 60.0
    """So long after a job's end its usage record is waited for."""

    settle_s: float = 1.0
    """How often the records of ended jobs are looked for."""

    count_s: float = 60.0
    """How often a gateway counts the records of all tenants, also those of jobs that came by no gateway."""

    def __post_init__(self) -> None:
        require_positive(self, "lease_s", "record_wait_s", "settle_s", "count_s")
