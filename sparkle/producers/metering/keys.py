"""Makes keys, and tells whether one is that of a hash. Knows no tenant and keeps no key."""

from __future__ import annotations

import hashlib
import hmac
import secrets

from sparkle.producers.metering.tenant import KeyHash

PREFIX = "sk-sparkle-"
"""How every key begins, so that scanners for leaked secrets find one."""

_ID_BYTES, _SECRET_BYTES = 6, 32
_LONGEST = 256


def new_key(*, now_ms: int) -> tuple[str, KeyHash]:
    """A key to show once, and what to keep of it."""
    key_id = secrets.token_hex(_ID_BYTES)
    key = f"{PREFIX}{key_id}-{secrets.token_urlsafe(_SECRET_BYTES)}"
    return key, KeyHash(id=key_id, sha256=_digest(key), made_ms=now_ms)


def id_of(key: str) -> str:
    """The part of a key that finds its hash; of what is no key something that finds none."""
    if not key.startswith(PREFIX) or len(key) > _LONGEST:
        return ""
    return key.removeprefix(PREFIX).partition("-")[0]


def is_valid(key: str, kept: KeyHash | None, *, now_ms: int) -> bool:
    """Whether `key` is the one kept and has not ended; takes as long for one that is not kept at all."""
    # the hash of a key that nobody has: to compare with it takes what any other comparison does
    expected = "0" * 64 if kept is None else kept.sha256
    is_same = hmac.compare_digest(_digest(key[:_LONGEST]), expected)
    return is_same and kept is not None and (kept.ends_ms is None or now_ms < kept.ends_ms)


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()
