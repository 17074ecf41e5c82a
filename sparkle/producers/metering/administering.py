"""What an administrator does with tenants, and what the terminal says of it. Knows no flags."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

from rich.console import Console

from sparkle.errors import ConfigError
from sparkle.producers.metering.accounts import AccountFile
from sparkle.producers.metering.clock import Clock
from sparkle.producers.metering.meter_address import named_as_meter
from sparkle.producers.metering.settings import MeteringSettings
from sparkle.producers.metering.tenant import Tenant
from sparkle.producers.metering.tenant_book import TenantBook
from sparkle.producers.metering.tenant_rows import tenant_fields, tenant_table
from sparkle.producers.metering.usage_rows import Form, usage_rows, written
from sparkle.queue import usage_streams
from sparkle.queue.connection import Connection
from sparkle.queue.key_values import KeyValues
from sparkle.queue.usage_streams import BUCKET, UsageSettings

_MONTH = re.compile(r"[0-9]{4}-(0[1-9]|1[0-2])")
_KEY_NOTE = "[dim]This is shown once and kept nowhere: only its hash is. Give it to the tenant now.[/dim]"


class Administration:
    """The commands of `sparkle tenants`; each gives its exit code and raises ConfigError, QueueError."""

    def __init__(self, settings: MeteringSettings, out: Console, notes: Console, clock: Clock) -> None:
        """`out` gets what is asked for, `notes` what is said about it."""
        self._settings = settings
        self._out = out
        self._notes = notes
        self._clock = clock

    async def init(self, streams: UsageSettings) -> int:
        """Declare the streams of the metering account."""
        async with self._connected() as connection:
            for change in await usage_streams.declare(connection, streams):
                self._out.print(f"{change.kind:8} {change.name:16} {change.outcome}")
        return 0

    async def add(self, tenant: Tenant) -> int:
        """Add a tenant and show its key."""
        async with self._connected() as connection:
            key = await _book(connection).add(tenant, now_ms=self._clock.unix_ms())
        return self._show_key(key)

    async def rotate(self, name: str, *, old_keys_s: float) -> int:
        """Show a tenant's new key; those it has end in `old_keys_s`."""
        now_ms = self._clock.unix_ms()
        async with self._connected() as connection:
            key = await _book(connection).rotate(
                name, now_ms=now_ms, old_end_ms=now_ms + int(old_keys_s * 1000)
            )
        return self._show_key(key)

    async def change(self, name: str, to: Callable[[Tenant], Tenant]) -> int:
        """Change a tenant and show it as it is now."""
        async with self._connected() as connection:
            changed = await _book(connection).change(name, to)
        self._out.print(tenant_table([changed], self._clock.unix_ms()))
        return 0

    async def show(self, form: Form) -> int:
        """Show all tenants, without any hash."""
        async with self._connected() as connection:
            tenants = await _book(connection).all()
        match form:
            case Form.TABLE:
                self._out.print(tenant_table(tenants, self._clock.unix_ms()))
            case Form.JSON:
                self._out.print_json(data=[tenant_fields(tenant) for tenant in tenants])
            case Form.CSV:
                raise ConfigError("format is csv but a tenant has lists; take table or json")
        return 0

    async def usage(self, names: list[str], *, month: str | None, form: Form) -> int:
        """Count what has not been counted, and show what these tenants, or all, have used."""
        if month is not None and not _MONTH.fullmatch(month):
            raise ConfigError(f"month is {month!r} but must be of the form 2026-11")
        async with self._connected() as connection:
            book, values = _book(connection), KeyValues(connection, BUCKET)
            # whoever adds the rows up counts a tenant named twice once
            once = dict.fromkeys(names)
            tenants = [await book.get(name) for name in once] if names else await book.all()
            rows = [
                row
                for tenant in tenants
                for row in usage_rows(
                    tenant, await AccountFile(connection, values, tenant.name).count(), month=month
                )
            ]
        text = written(rows, form)
        if isinstance(text, str):
            # as it is: programs read it, however wide the terminal
            self._out.print(text, soft_wrap=True, markup=False, highlight=False)
        else:
            self._out.print(text)
        return 0

    def _show_key(self, key: str) -> int:
        self._out.print(key, soft_wrap=True, markup=False)
        self._notes.print(_KEY_NOTE)
        return 0

    @asynccontextmanager
    async def _connected(self) -> AsyncGenerator[Connection]:
        with named_as_meter():
            connection = await Connection.open(self._settings.connection("sparkle-tenants"))
        try:
            yield connection
        finally:
            await connection.close()


def _book(connection: Connection) -> TenantBook:
    return TenantBook(KeyValues(connection, BUCKET))
