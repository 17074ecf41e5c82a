"""Tenants as people and programs see them: without a hash. Knows no store."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from rich.table import Table

from sparkle.producers.metering.tenant import KeyHash, Tenant


def tenant_table(tenants: Iterable[Tenant], now_ms: int) -> Table:
    """One row a tenant; of its keys the ids of those that still open a door."""
    table = Table("tenant", "region", "models")
    for name in ("tokens/month", "requests/min", "tokens/min", "running"):
        table.add_column(name, justify="right")
    table.add_column("keys", overflow="fold")
    for tenant in tenants:
        limits = tenant.limits
        numbers = (
            tenant.allowance_tokens,
            limits.requests_per_minute,
            limits.tokens_per_minute,
            limits.max_running,
        )
        keys = [_key(key) for key in tenant.keys if key.ends_ms is None or key.ends_ms > now_ms]
        table.add_row(
            tenant.name,
            tenant.region,
            ", ".join(tenant.models) or "any",
            *map(in_words, numbers),
            ", ".join(keys),
        )
    return table


def tenant_fields(tenant: Tenant) -> dict[str, object]:
    """A tenant's fields in JSON, and of its keys what is no secret."""
    return tenant.model_dump(mode="json", exclude={"keys": {"__all__": {"sha256"}}})


def in_words(limit: int | None) -> str:
    """A limit, for people."""
    return "-" if limit is None else f"{limit:,}"


def _key(key: KeyHash) -> str:
    if key.ends_ms is None:
        return key.id
    return f"{key.id} until {datetime.fromtimestamp(key.ends_ms / 1000, tz=UTC):%Y-%m-%d %H:%M} UTC"
