"""Where the server is and how patient a connection is. Knows no connection."""

from __future__ import annotations

from dataclasses import dataclass, field

from sparkle.config import require_positive
from sparkle.errors import ConfigError
from sparkle.queue.bus_access import BusAccess


@dataclass(frozen=True, slots=True)
class Login:
    """User and password, or a token, or neither."""

    user: str | None
    password: str | None = field(repr=False)
    token: str | None = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionSettings:
    """Where the server is and how patient to be."""

    url: str = field(default="nats://127.0.0.1:4222", repr=False)
    """Servers, comma-separated; `nats://user:password@host:port` where one is needed."""

    name: str = "sparkle"
    """Name of this connection in the server's monitoring."""

    access: BusAccess = field(default_factory=BusAccess)
    """Who connects, and whom it trusts."""

    inbox_group: str = ""
    """With whom it shares a place for answers: each may answer the others there, and hears its own alone."""

    connect_timeout_s: float = 5.0
    """How long `open` tries before it raises NotConnected."""

    request_timeout_s: float = 5.0
    """How long to wait for an answer where no other time is given."""

    reconnect_wait_s: float = 0.25
    """Mean wait between two tries of the same server; each process draws its own."""

    ping_interval_s: float = 5.0
    """How often to see whether the server is still there."""

    pending_bytes: int = 64 * 1024 * 1024
    """What may wait to be sent while the server is away."""

    def __post_init__(self) -> None:
        require_positive(
            self, "connect_timeout_s", "request_timeout_s", "reconnect_wait_s", "ping_interval_s"
        )
        if self.pending_bytes < 1024 * 1024:
            raise ConfigError(f"pending_bytes is {self.pending_bytes} but must be at least {1024 * 1024}")

    @property
    def login(self) -> Login:
        """Who the addresses say that we are. Raises ConfigError where they say different things."""
        found = {server.rpartition("@")[0].rpartition("://")[2] for server in self.servers} - {""}
        if len(found) > 1:
            raise ConfigError("the servers' addresses have different users; give all of them the same one")
        user, has_password, password = (found or {""}).pop().partition(":")
        return Login(user, password, None) if has_password else Login(None, None, user or None)

    @property
    def servers(self) -> list[str]:
        """Each server's address."""
        return [server.strip() for server in self.url.split(",") if server.strip()]

    @property
    def shown(self) -> str:
        """The servers' addresses without user and password."""
        return ", ".join(server.rpartition("://")[2].rpartition("@")[2] for server in self.servers)
