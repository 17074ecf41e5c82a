"""Who a program is on the bus, and whom it trusts there: nkey and TLS. Knows no connection."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from sparkle.errors import ConfigError
from sparkle.queue.nkey import public_key, read_seed

SHARED_INBOX = "_INBOX"
"""Where answers come to for users whom no permissions tell apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """What was read from the files of `BusAccess`."""

    seed: str | None
    inbox_prefix: str
    """Where answers come to: with a nkey a place that permissions give to nobody else."""

    tls: ssl.SSLContext | None
    """With it, not a byte is sent but over TLS."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BusAccess:
    """Who this program is on the bus, `[bus]`; without any of it, the server must ask for nothing."""

    seed_file: Path | None = None
    """The seed of its nkey, a file that nobody else may read."""

    ca_file: Path | None = None
    """Certificates of who signed the servers'; with it, nothing is sent but over TLS 1.3."""

    cert_file: Path | None = None
    """Its own certificate, which servers ask for."""

    key_file: Path | None = None
    """The private key of its certificate."""

    def __post_init__(self) -> None:
        if (self.cert_file is None) != (self.key_file is None):
            raise ConfigError("cert_file and key_file go together; give both of them, or none")
        if self.cert_file is not None and self.ca_file is None:
            raise ConfigError("cert_file is given but not ca_file; name who signed the servers' certificates")

    def read(self, inbox_group: str = "") -> Credentials:
        """What the files hold. Raises ConfigError naming the one that cannot be used."""
        tls = self._tls()
        if self.seed_file is None:
            return Credentials(seed=None, inbox_prefix=SHARED_INBOX, tls=tls)
        seed = read_seed(self.seed_file)
        inbox = inbox_of(public_key(seed, self.seed_file), inbox_group)
        return Credentials(seed=seed, inbox_prefix=inbox, tls=tls)

    def _tls(self) -> ssl.SSLContext | None:
        if self.ca_file is None:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        at_fault = self.ca_file
        try:
            context.load_verify_locations(self.ca_file)
            if self.cert_file is not None:
                at_fault = self.cert_file
                context.load_cert_chain(self.cert_file, self.key_file)
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise ConfigError(f"{at_fault}: cannot be used for TLS ({reason})") from None
        return context


def inbox_of(public: str, group: str = "") -> str:
    """Where the answers for a nkey's user come to; its permissions name the same."""
    return f"{inboxes_of(group)}.{public}" if group else f"{SHARED_INBOX}_{public}"


def inboxes_of(group: str) -> str:
    """What the inboxes of all users of a group begin with."""
    return f"{SHARED_INBOX}_{group}"


def workers_of(region: str) -> str:
    """The group of a region's workers."""
    return f"WORKERS.{region}"
