"""The tenants, one value each in the metering account's bucket: read and written whole. Knows no job."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from pydantic import ValidationError

from sparkle.errors import ConfigError, InvalidMessage
from sparkle.producers.metering.contention import MOST_CONFLICTS, contended, pause
from sparkle.producers.metering.keys import new_key
from sparkle.producers.metering.tenant import MAX_KEYS, Tenant
from sparkle.queue.connection import Subscription
from sparkle.queue.key_values import Entry, KeyValues
from sparkle.schemas.codec import describe
from sparkle.schemas.names import require_name

_ALL = "tenant.*"


class TenantBook:
    """All tenants. Each method raises what `KeyValues` does, and InvalidMessage for a newer version's."""

    def __init__(self, values: KeyValues) -> None:
        self._values = values

    async def all(self) -> list[Tenant]:
        """Every tenant, by name."""
        entries = await self._values.matching(_ALL)
        return sorted((read_tenant(entry) for entry in entries), key=lambda tenant: tenant.name)

    async def readable(self) -> tuple[list[Tenant], list[str]]:
        """Every tenant that can be read, and the keys of those of a newer version, which hold up no other."""
        tenants, others = list[Tenant](), list[str]()
        for entry in await self._values.matching(_ALL):
            try:
                tenants.append(read_tenant(entry))
            except InvalidMessage:
                others.append(entry.key)
        return tenants, others

    async def get(self, name: str) -> Tenant:
        """The tenant of this name. Raises ConfigError when there is none."""
        return (await self._entry(name))[0]

    async def add(self, tenant: Tenant, *, now_ms: int) -> str:
        """A new tenant's key, which is kept nowhere. Raises ConfigError when the name is taken."""
        key, kept = new_key(now_ms=now_ms)
        first = tenant.model_copy(update={"keys": (kept,)})
        if await self._values.put(_key(tenant.name), _written(first), revision=0) is None:
            raise ConfigError(f"tenant {tenant.name} is there already; `sparkle tenants change` changes it")
        return key

    async def change(self, name: str, to: Callable[[Tenant], Tenant]) -> Tenant:
        """The tenant as `to` makes it of what it is. Raises ConfigError when there is none."""
        for attempt in range(MOST_CONFLICTS):
            tenant, revision = await self._entry(name)
            changed = to(tenant)
            if await self._values.put(_key(name), _written(changed), revision=revision) is not None:
                return changed
            await pause(attempt)
        raise contended(f"tenant {name}")

    async def rotate(self, name: str, *, now_ms: int, old_end_ms: int) -> str:
        """A new key; the older ones end at `old_end_ms` at the latest. Raises ConfigError."""
        key, kept = new_key(now_ms=now_ms)

        def renewed(tenant: Tenant) -> Tenant:
            older = [
                one.model_copy(update={"ends_ms": min(old_end_ms, one.ends_ms or old_end_ms)})
                for one in tenant.keys
                if one.ends_ms is None or one.ends_ms > now_ms
            ]
            if len(older) >= MAX_KEYS:
                raise ConfigError(
                    f"tenant {name} has {len(older)} keys that have not ended and at most {MAX_KEYS} fit; "
                    "end them with --old-keys-s 0"
                )
            return tenant.model_copy(update={"keys": (*(one for one in older), kept)})

        await self.change(name, renewed)
        return key

    async def watch(self, handler: Callable[[Tenant], Awaitable[None]]) -> Subscription:
        """Call `handler` with each tenant as soon as it is written; one can get lost."""

        async def take(entry: Entry) -> None:
            await handler(read_tenant(entry))

        return await self._values.watch(_ALL, take)

    async def _entry(self, name: str) -> tuple[Tenant, int]:
        require_name("NAME", name)
        entry = await self._values.get(_key(name))
        if entry is None:
            raise ConfigError(f"there is no tenant {name}; `sparkle tenants list` shows those there are")
        return read_tenant(entry), entry.revision


def read_tenant(entry: Entry) -> Tenant:
    """The tenant in an entry. Raises InvalidMessage, naming the tenant."""
    try:
        return Tenant.model_validate_json(entry.value)
    except ValidationError as error:
        raise InvalidMessage(
            f"{entry.key}: {describe(error)}; a newer version may have written it: use that one"
        ) from None


def _key(name: str) -> str:
    return f"tenant.{name}"


def _written(tenant: Tenant) -> bytes:
    return tenant.model_dump_json(exclude_none=True).encode()
