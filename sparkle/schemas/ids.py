"""Makes job ids: UUIDs of version 7 (RFC 9562, section 5.7). Knows nothing of jobs."""

from __future__ import annotations

import secrets
import time
import uuid


def new_job_id() -> str:
    """A new id: 48 bits of Unix time in ms, then 74 random bits."""
    return job_id_from(time.time_ns() // 1_000_000, secrets.randbits(74))


def job_id_from(unix_ms: int, random_bits: int) -> str:
    """The id of these parts: `unix_ms` in 48 bits, `random_bits` in 74."""
    high = (unix_ms & (1 << 48) - 1) << 16 | 0x7000 | random_bits >> 62 & 0xFFF
    low = 0b10 << 62 | random_bits & (1 << 62) - 1
    return str(uuid.UUID(int=high << 64 | low))
