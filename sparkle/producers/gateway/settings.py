"""Settings of the gateway: where it listens, and how much it holds of anything. Knows no queue."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from sparkle.config import require_positive
from sparkle.errors import ConfigError
from sparkle.schemas.job import MAX_CONTEXT_TOKENS


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    """Where to listen and what to bound. Read from `[gateway]` of a file and from SPARKLE_GATEWAY_<NAME>."""

    host: str = "127.0.0.1"
    """Address to listen on; TLS is for the proxy in front."""

    port: int = 8080
    """Port to listen on; 0 takes a free one."""

    no_keys: bool = False
    """Whether everybody may ask: for one's own machine alone."""

    models: str = ""
    """Models, comma-separated, whose jobs are queued although no worker serves them now."""

    max_tokens: int = 1024
    """Where an answer ends at the latest if its request does not say."""

    deadline_s: float = 600.0
    """When an answer is of no more use if its request does not say."""

    max_choices: int = 16
    """Answers of one request, at most."""

    max_open: int = 2048
    """Answers under way at once, over all requests; more are refused."""

    accept_timeout_s: float = 10.0
    """How long the queue may take to hold a job before it is refused."""

    max_connections: int = 4096
    """Open HTTP connections; more are refused."""

    head_max_bytes: int = 65_536
    """A request's line and headers."""

    head_timeout_s: float = 10.0
    """How long a client may take to send them."""

    body_max_bytes: int = 16 * 1024 * 1024
    """A request's body, a file's apart."""

    body_timeout_s: float = 60.0
    """How long a client may take to send it."""

    bodies_max_bytes: int = 512 * 1024 * 1024
    """All bodies of requests that are not answered yet."""

    send_timeout_s: float = 60.0
    """A client that takes nothing for so long is taken for gone."""

    file_max_bytes: int = 64 * 1024 * 1024
    """An uploaded file."""

    files_max_bytes: int = 256 * 1024 * 1024
    """All files of one tenant, and again all that its batches work on; of all tenants, four times as much."""

    file_s: float = 3600.0
    """How long an uploaded file, and a batch's output after its end, is kept."""

    batch_jobs: int = 32
    """Jobs of all batches on the queue at once."""

    drain_s: float = 30.0
    """After the first signal answers under way may take so long."""

    def __post_init__(self) -> None:
        if not 0 <= self.port < 65_536:
            raise ConfigError(f"port is {self.port} but must be 0 to 65535")
        require_positive(
            *(self, "deadline_s", "max_choices", "max_open", "accept_timeout_s", "max_connections"),
            *("head_max_bytes", "head_timeout_s", "body_max_bytes", "body_timeout_s", "bodies_max_bytes"),
            *("send_timeout_s", "file_max_bytes", "files_max_bytes", "file_s", "batch_jobs", "drain_s"),
        )
        if not 1 <= self.max_tokens <= MAX_CONTEXT_TOKENS:
            raise ConfigError(f"max_tokens is {self.max_tokens} but must be 1 to {MAX_CONTEXT_TOKENS}")
        if self.no_keys and not is_loopback(self.host):
            raise ConfigError(
                f"no_keys with host {self.host} would let everybody in; listen on 127.0.0.1, or give "
                "out keys with `sparkle tenants add`"
            )

    @property
    def always_served(self) -> tuple[str, ...]:
        """The names in `models`."""
        return tuple(name.strip() for name in self.models.split(",") if name.strip())


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
