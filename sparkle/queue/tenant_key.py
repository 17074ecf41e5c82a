"""Seals a tenant's payloads end to end, AES-256-GCM: without the key nobody reads, moves or changes one.

    sealed = nonce (12 bytes, random) | ciphertext | tag (16 bytes)
    key    = HKDF-Expand(SHA-256, the tenant's secret, "sparkle seal 1 " + place)

The place is the subject that the payload is published under. It is bound twice, by the key and as associated
data: what was sealed for one job, or on the way to the worker, opens nowhere else. A key of its own for each
place also keeps nonces unique: no job has nearly as many messages as random ones of 96 bits allow (2^32), and
a tenant soon would have. Knows no connection.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from sparkle.errors import ConfigError, NotAuthentic
from sparkle.schemas.subjects import KEY_HEADER

SECRET_BYTES = 32
NONCE_BYTES = 12
TAG_BYTES = 16
ADDED_BYTES = NONCE_BYTES + TAG_BYTES
"""What a sealed payload is longer by."""

_PURPOSE = "sparkle seal 1 "


@dataclass(frozen=True, slots=True)
class TenantKey:
    """One key of one tenant."""

    tenant: str

    id: str
    """Names the key in headers, logs and errors; says nothing of it."""

    secret: bytes = field(repr=False)

    headers: Mapping[str, str] = field(init=False, repr=False, compare=False)
    """What goes beside a payload that it has sealed."""

    def __post_init__(self) -> None:
        if len(self.secret) != SECRET_BYTES:
            raise ConfigError(
                f"the secret of key {self.id} has {len(self.secret)} bytes but must have {SECRET_BYTES}"
            )
        object.__setattr__(self, "headers", MappingProxyType({KEY_HEADER: self.id}))

    def seal(self, place: str, payload: bytes) -> bytes:
        """The payload as it goes under the subject `place`: another one each time."""
        nonce = os.urandom(NONCE_BYTES)
        return nonce + self._cipher(place).encrypt(nonce, payload, place.encode())

    def open(self, place: str, sealed: bytes) -> bytes:
        """What was sealed for the subject `place`. Raises NotAuthentic for anything else."""
        nonce, rest = sealed[:NONCE_BYTES], sealed[NONCE_BYTES:]
        try:
            if len(rest) < TAG_BYTES:
                raise InvalidTag
            return self._cipher(place).decrypt(nonce, rest, place.encode())
        except InvalidTag:
            raise NotAuthentic(
                f"payload: not what was sealed with key {self.id} for this subject; it was changed or moved, "
                "or two keys have this id"
            ) from None

    def _cipher(self, place: str) -> AESGCM:
        expand = HKDFExpand(algorithm=SHA256(), length=SECRET_BYTES, info=f"{_PURPOSE}{place}".encode())
        return AESGCM(expand.derive(self.secret))
