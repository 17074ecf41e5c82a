"""Seals as a hostile or broken sender makes them, from a seed: each payload comes with how it was sealed."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from sparkle.queue.envelope import NO_HEADERS, Seal
from sparkle.queue.key_ring import KeyRing
from sparkle.schemas.subjects import KEY_HEADER
from tests.key_files import key_file
from tests.worker_at_work import TENANT


class Manner(StrEnum):
    """How a payload was sealed."""

    SOUND = "sound"  #: as it should be
    CLEAR = "clear"  #: not at all
    DAMAGED = "damaged"  #: some bytes are others, missing or more
    ELSEWHERE = "elsewhere"  #: for another subject
    OTHER_TENANT = "other_tenant"  #: with another tenant's key, in the name of the own one
    OTHER_ID = "other_id"  #: with the own key, under the name of another one
    UNSEALED = "unsealed"  #: not at all, under the name of a key


@dataclass(frozen=True, slots=True)
class Sealed:
    """A payload and its headers."""

    manner: Manner
    payload: bytes
    headers: Mapping[str, str]


class HostileSeals:
    """Seals in every manner; the same seed draws the same ones."""

    def __init__(self, seed: int, *, own: Seal, older: Seal, other: Seal) -> None:
        """Two keys of the tenant that is attacked, and one of another."""
        self.own, self.older, self.other = own, older, other
        self._random = random.Random(seed)

    def seal(self, subject: str, payload: bytes) -> Sealed:
        """The payload as it goes under `subject`; half of them are sound, so that what is inside is read."""
        manner = Manner.SOUND if self._random.random() < 0.5 else self._random.choice(list(Manner))
        sealed, headers = self.own.seal(subject, payload), self.own.headers
        match manner:
            case Manner.CLEAR:
                return Sealed(manner, payload, NO_HEADERS)
            case Manner.DAMAGED:
                sealed = self._damage(sealed)
            case Manner.ELSEWHERE:
                sealed = self.own.seal(self._random.choice((subject[:-1], "jobs.x", "")), payload)
            case Manner.OTHER_TENANT:
                sealed = self.other.seal(subject, payload)
            case Manner.OTHER_ID:
                headers = {
                    KEY_HEADER: self._random.choice((self.older.id, self.other.id, "\u00e9 ", "k" * 300))
                }
            case Manner.UNSEALED:
                sealed = payload
            case Manner.SOUND:
                pass
        return Sealed(manner, sealed, headers)

    def _damage(self, sealed: bytes) -> bytes:
        place = self._random.randrange(len(sealed))
        changed = bytes([sealed[place] ^ self._random.randint(1, 255)])
        return self._random.choice(
            (
                *(sealed[:place], sealed[:place] + changed + sealed[place + 1 :], sealed + b"\x00"),
                *(b"", sealed[place:] + sealed[:place] + changed, self._random.randbytes(40)),
            )
        )


def hostile_seals(folder: Path, *, seed: int) -> tuple[HostileSeals, Path]:
    """With the keys of a new file in `folder`, for the worker to have."""
    file = key_file(folder / "keys", {TENANT: ["k1", "k2"], "other": ["k3"]})
    ring = KeyRing(file)
    own, older = ring.named(TENANT, "k2"), ring.named(TENANT, "k1")
    return HostileSeals(seed, own=own, older=older, other=ring.named("other", "k3")), file
