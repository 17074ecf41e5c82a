"""Files of tenants, in memory alone: bounded in bytes, gone after their time. Of HTTP knows only faults."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from sparkle.producers.gateway.faults import ApiFault, not_found

TENANTS_SHARE = 4
"""All tenants together may hold so many times as much as one."""

MAX_FILES = 1_000
"""Files of one tenant."""


@dataclass(slots=True, eq=False)
class KeptFile:
    """A file: uploaded, or written by a batch."""

    id: str
    tenant: str
    name: str
    purpose: str
    created_s: int
    data: bytearray = field(repr=False)
    expires_s: int | None = None
    """Unix time; None while a batch writes it."""

    def fields(self) -> dict[str, object]:
        """As OpenAI shows it."""
        return {
            "id": self.id,
            "object": "file",
            "bytes": len(self.data),
            "created_at": self.created_s,
            "expires_at": self.expires_s,
            "filename": self.name,
            "purpose": self.purpose,
            "status": "processed",
        }


class KeptFiles:
    """The files of all tenants."""

    def __init__(
        self,
        *,
        tenant_max_bytes: int,
        keep_s: float,
        on_size: Callable[[int], None],
    ) -> None:
        """`on_size` is told the bytes of all files whenever they change."""
        self._tenant_max_bytes = tenant_max_bytes
        self._keep_s = keep_s
        self._on_size = on_size
        self._files: dict[str, KeptFile] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._held_bytes: Counter[str] = Counter()

    def add(self, tenant: str, name: str, purpose: str, data: bytes | bytearray = b"") -> KeptFile:
        """Keep a new file; `expire` starts its time. Raises ApiFault where it does not fit."""
        if sum(file.tenant == tenant for file in self._files.values()) >= MAX_FILES:
            raise ApiFault(429, "too_many_files", f"{MAX_FILES} files are kept; delete some")
        self._require_room(tenant, len(data))
        file = KeptFile(
            id=f"file-{secrets.token_hex(12)}",
            tenant=tenant,
            name=name,
            purpose=purpose,
            created_s=int(time.time()),
            data=data if isinstance(data, bytearray) else bytearray(data),
        )
        self._files[file.id] = file
        self._count(tenant, len(data))
        return file

    def append(self, file: KeptFile, data: bytes) -> None:
        """Write more of a file, unless it was deleted. Raises ApiFault where it does not fit."""
        if file.id not in self._files:
            return
        self._require_room(file.tenant, len(data))
        file.data += data
        self._count(file.tenant, len(data))

    def expire(self, file: KeptFile) -> None:
        """Its time starts now."""
        if file.id not in self._files:
            return
        file.expires_s = int(time.time() + self._keep_s)
        loop = asyncio.get_running_loop()
        self._timers[file.id] = loop.call_later(self._keep_s, self._remove, file.id)

    def get(self, tenant: str, file_id: str) -> KeptFile:
        """A tenant's file. Raises ApiFault: another tenant's is none."""
        file = self._files.get(file_id)
        if file is None or file.tenant != tenant:
            raise not_found("file")
        return file

    def of(self, tenant: str) -> list[KeptFile]:
        """A tenant's files, the newest first."""
        return [file for file in reversed(self._files.values()) if file.tenant == tenant]

    def delete(self, tenant: str, file_id: str) -> None:
        """Let go of a file now. Raises ApiFault."""
        self._remove(self.get(tenant, file_id).id)

    def clear(self) -> None:
        """Let go of all."""
        for file_id in list(self._files):
            self._remove(file_id)

    def _remove(self, file_id: str) -> None:
        if timer := self._timers.pop(file_id, None):
            timer.cancel()
        if file := self._files.pop(file_id, None):
            self._count(file.tenant, -len(file.data))

    def _require_room(self, tenant: str, size_bytes: int) -> None:
        own = self._held_bytes[tenant]
        if own + size_bytes > self._tenant_max_bytes:
            limit = (
                f"files of {own} bytes are kept and {size_bytes} more would be over {self._tenant_max_bytes}"
            )
            raise ApiFault(413, "files_too_large", f"{limit}; delete some")
        if self._held_bytes.total() + size_bytes > TENANTS_SHARE * self._tenant_max_bytes:
            raise ApiFault(503, "overloaded", "the gateway keeps as many files as it may; try again later")

    def _count(self, tenant: str, more_bytes: int) -> None:
        self._held_bytes[tenant] += more_bytes
        if not self._held_bytes[tenant]:
            del self._held_bytes[tenant]
        self._on_size(self._held_bytes.total())
