"""Tenants' keys from a file that only its owner can read, read again when it changes. Knows no message.

    [acme]
    2026-11 = "<32 bytes in base64>"
    2026-12 = "…"

A tenant's last key seals, all of them open: a new one goes to workers first, then to producers, and the old
one leaves when no job of it can be left. Secrets are in no setting: those can stand in an environment or a
command line, which others can see.
"""

from __future__ import annotations

import base64
import binascii
import logging
import os
import stat
import time
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from sparkle.errors import ConfigError, UnknownKey
from sparkle.queue.envelope import Seal
from sparkle.schemas.names import is_name

log = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0
"""How often the file is looked at, at most."""

Keys = dict[str, dict[str, Seal]]
"""By tenant and key id, in the file's order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncryptionSettings:
    """Whether payloads are sealed end to end; `[encryption]`, for clients and workers."""

    keys_file: Path | None = None
    """Tenants' keys; None seals nothing."""

    required: bool = False
    """Whether a worker refuses jobs that are not sealed. A client with keys always seals."""

    def __post_init__(self) -> None:
        if self.required and self.keys_file is None:
            raise ConfigError("encryption is required but there is no keys_file; name one")

    def ring(self) -> KeyRing | None:
        """The keys, if there are any. Raises what `KeyRing` raises."""
        return None if self.keys_file is None else KeyRing(self.keys_file)


class KeyRing:
    """The keys of a file, as it is now."""

    def __init__(self, file: Path, clock: Callable[[], float] = time.monotonic) -> None:
        """Raises ConfigError for a file that others can read, or that holds anything but keys."""
        self._file = file
        self._clock = clock
        self._looked_s = clock()
        self._seen, self._keys = _read(file)

    def newest(self, tenant: str) -> Seal:
        """The key that seals a tenant's jobs. Raises UnknownKey where it has none."""
        self._look()
        keys = self._keys.get(tenant)
        if not keys:
            raise UnknownKey(f"there is no key of tenant {tenant} in keys_file; add one")
        return list(keys.values())[-1]

    def named(self, tenant: str, key_id: str) -> Seal:
        """The tenant's key of this id. Raises UnknownKey."""
        self._look()
        key = self._keys.get(tenant, {}).get(key_id)
        if key is None:
            # the id is what a sender wrote
            have = len(self._keys.get(tenant, {}))
            raise UnknownKey(f"payload: sealed with none of the {have} keys of tenant {tenant} that are here")
        return key

    def _look(self) -> None:
        """Read the file again if it has changed; one that cannot be used changes nothing."""
        if self._clock() < self._looked_s + LOOK_EVERY_S:
            return
        self._looked_s = self._clock()
        try:
            if _state(self._file) != self._seen:
                self._seen, self._keys = _read(self._file)
                log.info("keys_read", extra={"keys": sum(map(len, self._keys.values()))})
        except (ConfigError, OSError) as error:
            log.warning("keys_unusable", extra={"error": type(error).__name__})


def _read(file: Path) -> tuple[tuple[int, ...], Keys]:
    """The file's state and its keys. Raises ConfigError; of a wrong secret it shows nothing."""
    try:
        state = _state(file)
        _require_private(file)
        tables = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"keys_file {file} cannot be read ({error.strerror})") from None
    # where it is wrong is told with what stands there
    except (tomllib.TOMLDecodeError, UnicodeDecodeError):
        raise ConfigError(
            f'keys_file {file} is not TOML; write [tenant] and lines of id = "secret"'
        ) from None
    return state, {tenant: _tenant_keys(file, tenant, table) for tenant, table in tables.items()}


def _tenant_keys(file: Path, tenant: str, table: object) -> dict[str, Seal]:
    try:
        from sparkle.queue.tenant_key import TenantKey
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"{error.name} is not installed; `pip install 'sparkle-inference[encryption]'` brings it"
        ) from None
    if not isinstance(table, dict):
        raise ConfigError(f"keys_file {file}: keys stand under a tenant's name; write [tenant] above them")
    secrets = cast("dict[str, object]", table)
    # not shown: it may be a secret that stands in the wrong place
    if not all(map(is_name, (tenant, *secrets))):
        raise ConfigError(
            f"keys_file {file}: a tenant or a key's id is not 1 to 63 lower-case letters, digits and dashes"
        )
    return {name: TenantKey(tenant, name, _secret(file, name, text)) for name, text in secrets.items()}


def _secret(file: Path, name: str, text: object) -> bytes:
    try:
        return base64.b64decode(text if isinstance(text, str) else "?", validate=True)
    except (binascii.Error, ValueError):
        raise ConfigError(f"keys_file {file}: the secret of key {name} is not base64") from None


def _state(file: Path) -> tuple[int, ...]:
    found = os.stat(file)
    return found.st_ino, found.st_size, found.st_mtime_ns


def _require_private(file: Path) -> None:
    mode = stat.S_IMODE(os.stat(file).st_mode)
    if mode & 0o077:
        raise ConfigError(f"keys_file {file} can be read by others (mode {mode:o}); `chmod 600` it")
