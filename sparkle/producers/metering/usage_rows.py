"""What tenants used, month by month, as rows for people and programs. Knows no account's store."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable
from dataclasses import asdict, astuple, dataclass, fields
from enum import StrEnum

from rich.table import Table

from sparkle.errors import ConfigError
from sparkle.producers.metering.account import Account, MonthUsage
from sparkle.producers.metering.tenant import Tenant
from sparkle.producers.metering.tenant_rows import in_words


class Form(StrEnum):
    """How rows are written."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"


def form_of(text: str) -> Form:
    """The form of this name. Raises ConfigError."""
    try:
        return Form(text)
    except ValueError:
        raise ConfigError(f"--format is {text!r} but must be one of {', '.join(Form)}") from None


@dataclass(frozen=True, slots=True)
class UsageRow:
    """One tenant's month."""

    tenant: str
    month: str
    jobs: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    tokens: int
    """What counts against the allowance."""

    allowance_tokens: int | None
    """As it is now; None is without end."""


def usage_rows(tenant: Tenant, account: Account, *, month: str | None) -> list[UsageRow]:
    """A row for each month in which the tenant's jobs ended, or the one for `month`."""
    months = sorted(account.months.items()) if month is None else [(month, account.months.get(month))]
    return [_row(tenant, name, used or MonthUsage()) for name, used in months]


def written(rows: Iterable[UsageRow], form: Form) -> str | Table:
    """The rows in this form; text ends without a line break."""
    match form:
        case Form.JSON:
            return json.dumps([asdict(row) for row in rows], indent=2)
        case Form.CSV:
            return _csv(rows)
        case Form.TABLE:
            return _table(rows)


def _row(tenant: Tenant, month: str, used: MonthUsage) -> UsageRow:
    return UsageRow(
        tenant=tenant.name,
        month=month,
        jobs=used.jobs,
        prompt_tokens=used.prompt_tokens,
        cached_tokens=used.cached_tokens,
        completion_tokens=used.completion_tokens,
        tokens=used.tokens,
        allowance_tokens=tenant.allowance_tokens,
    )


def _csv(rows: Iterable[UsageRow]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(field.name for field in fields(UsageRow))
    writer.writerows(astuple(row) for row in rows)
    return text.getvalue().rstrip("\n")


def _table(rows: Iterable[UsageRow]) -> Table:
    table = Table("tenant", "month")
    for name in ("jobs", "prompt", "of it cached", "answers", "tokens", "allowance"):
        table.add_column(name, justify="right")
    for row in rows:
        counts = (row.jobs, row.prompt_tokens, row.cached_tokens, row.completion_tokens, row.tokens)
        table.add_row(
            row.tenant, row.month, *(f"{count:,}" for count in counts), in_words(row.allowance_tokens)
        )
    return table
