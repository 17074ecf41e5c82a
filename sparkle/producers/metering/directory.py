"""Whose key is whose, in memory and up to date, so that no request waits for it. Knows no job."""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from sparkle.errors import KeyRefused, NotConnected, QueueError
from sparkle.producers.metering.clock import Clock
from sparkle.producers.metering.keys import id_of, is_valid
from sparkle.producers.metering.tenant import KeyHash, Tenant

log = logging.getLogger(__name__)

RELOAD_S = 15.0
"""A change that got lost on its way is known after so long."""

STALE_S = 60.0
"""Without a look at the book for so long nobody is let in: a key may have been withdrawn."""


class Tenants(Protocol):
    """Where tenants are looked up: `tenant_book.TenantBook`."""

    async def readable(self) -> tuple[list[Tenant], list[str]]:
        """Every tenant that can be read, and the keys of others."""
        ...


class TenantDirectory:
    """All tenants by name, and all keys by their ids."""

    def __init__(self, book: Tenants, clock: Clock) -> None:
        """Empty, and stale, until `load`."""
        self._book = book
        self._clock = clock
        self._tenants: dict[str, Tenant] = {}
        self._keys: dict[str, tuple[str, KeyHash]] = {}
        self._loaded_s: float | None = None
        self._changes = 0
        self._others: list[str] = []

    async def load(self) -> None:
        """Read the whole book; whom this version cannot read is not let in. Raises QueueError."""
        while True:
            began_s, changes = self._clock.steady_s(), self._changes
            tenants, others = await self._book.readable()
            # what was told meanwhile is newer than what was read
            if changes == self._changes:
                break
        self._tenants, self._keys = {}, {}
        for tenant in tenants:
            self._put(tenant)
        self._loaded_s = began_s
        if others and others != self._others:
            log.error("tenants_unreadable", extra={"tenants": others})
        self._others = others

    async def keep_up(self) -> None:
        """Read the book again and again, for ever; trouble is told once, and ends with the next success."""
        is_well = True
        while True:
            await asyncio.sleep(RELOAD_S)
            try:
                await self.load()
                is_well = True
            except QueueError as error:
                if is_well:
                    log.warning("tenants_unread", extra={"error": type(error).__name__})
                is_well = False

    def put(self, tenant: Tenant) -> None:
        """The tenant has been changed to this."""
        self._changes += 1
        self._put(tenant)

    def _put(self, tenant: Tenant) -> None:
        for key in self._tenants[tenant.name].keys if tenant.name in self._tenants else ():
            self._keys.pop(key.id, None)
        self._tenants[tenant.name] = tenant
        for key in tenant.keys:
            self._keys[key.id] = (tenant.name, key)

    def of_key(self, key: str | None) -> Tenant:
        """Whose key it is. Raises KeyRefused, NotConnected when the book could not be read for too long."""
        if self._loaded_s is None or self._clock.steady_s() - self._loaded_s > STALE_S:
            raise NotConnected("the metering account is away: nobody can tell whose key this is; try again")
        name, kept = self._keys.get(id_of(key or ""), ("", None))
        if not is_valid(key or "", kept, now_ms=self._clock.unix_ms()):
            raise KeyRefused(
                "the key is missing, wrong or has ended; whoever runs this service gives out keys"
            )
        return self._tenants[name]

    def named(self, name: str) -> Tenant | None:
        """The tenant of this name."""
        return self._tenants.get(name)

    def names(self) -> list[str]:
        """All of them."""
        return list(self._tenants)
