"""What one worker is told: where to serve, what, and its limits. Knows neither flags nor environment."""

from __future__ import annotations

import re
import secrets
import socket
from dataclasses import dataclass, field
from pathlib import Path

from sparkle.errors import ConfigError
from sparkle.queue.bus_access import BusAccess
from sparkle.queue.control import HEARTBEAT_S
from sparkle.queue.key_ring import EncryptionSettings
from sparkle.quiet.logs import LogLevel
from sparkle.schemas.names import require_name

_MAX_PORT = 65_535


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """Settings of the worker process, `[worker]`; those of its engine stand elsewhere."""

    region: str = ""
    """Which region's jobs it takes. There is no default: content must not leave its region."""

    nats: str = "nats://127.0.0.1:4222"
    """Servers of the queue, comma-separated."""

    bus: BusAccess = field(default_factory=BusAccess)
    """Who it is on the bus."""

    name: str = ""
    """Names the worker in subjects, chunks and logs; empty makes one of host name and chance."""

    model: Path | None = None
    """The checkpoint's directory; None is the packaged sparkle-tiny."""

    drain_s: float = 0.0
    """After the first signal, running jobs may take this long to finish before they are handed over."""

    pass_limit_s: float = 60.0
    """An engine that takes longer for one pass hangs: it is ended and started again."""

    chunk_window_ms: float = 20.0
    """A token is sent at most this long after the engine wrote it."""

    max_deliveries: int = 16
    """A job is given up at this delivery in a row without a token: something it does ends its workers."""

    follow_up_wait_ms: float = 200.0
    """How long a follow-up waits for a slot of the worker that answered its conversation's last job."""

    heartbeat_s: float = HEARTBEAT_S
    """Between two signs of life; no longer than the default, or others take it for gone."""

    encryption: EncryptionSettings = field(default_factory=EncryptionSettings)
    """Tenants' keys, and whether jobs must be encrypted."""

    metered: bool = False
    """Whether a job ends only once its usage record is stored, however long the metering account is away;
    without it records are sent, and one can get lost."""

    consumer_away_s: float = 60.0
    """A job is cancelled whose producer does not answer for this long, unless it is detached."""

    log_level: LogLevel = LogLevel.INFO
    """From which events on they are told: ids and counts at every level."""

    metrics_port: int | None = None
    """Where Prometheus reads the metrics, on 127.0.0.1 alone; None serves none, 0 takes a free port."""

    def __post_init__(self) -> None:
        if not self.region:
            raise ConfigError("region is missing; say which region's jobs to take, as in --region eu")
        for name in ("region", "name"):
            value: str = getattr(self, name)
            if value:
                require_name(name, value)
        for name, low, high in (
            ("drain_s", 0.0, 86_400.0),
            ("pass_limit_s", 0.1, 3_600.0),
            ("consumer_away_s", 0.1, 86_400.0),
            ("chunk_window_ms", 0.0, 60_000.0),
            ("follow_up_wait_ms", 0.0, 60_000.0),
            ("heartbeat_s", 0.01, HEARTBEAT_S),
        ):
            number: float = getattr(self, name)
            if not low <= number <= high:
                raise ConfigError(f"{name} is {number} but must be {low} to {high}")
        if self.max_deliveries < 2:
            raise ConfigError(f"max_deliveries is {self.max_deliveries} but must be at least 2")
        if self.metrics_port is not None and not 0 <= self.metrics_port <= _MAX_PORT:
            raise ConfigError(f"metrics_port is {self.metrics_port} but must be 0 to {_MAX_PORT}")


def new_worker_name() -> str:
    """A name no other worker has: the host's first label, cut to fit, and six random hex digits."""
    host = re.sub(r"[^a-z0-9-]+", "-", socket.gethostname().split(".")[0].lower()).strip("-")
    return f"{host[:40] or 'worker'}-{secrets.token_hex(3)}"
