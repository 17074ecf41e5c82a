"""Months of an allowance, in UTC: which one a moment is in, when the next begins. Knows no account."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from pydantic import StringConstraints

Month = Annotated[str, StringConstraints(pattern=r"^[0-9]{4}-(0[1-9]|1[0-2])$")]
"""As `2026-11`: sorts by time."""


def month_of(unix_ms: int) -> str:
    """The month of a moment."""
    return _moment(unix_ms).strftime("%Y-%m")


def next_month_ms(unix_ms: int) -> int:
    """The first moment of the month after that of `unix_ms`."""
    now = _moment(unix_ms)
    year, month = (now.year + 1, 1) if now.month == 12 else (now.year, now.month + 1)
    return int(datetime(year, month, 1, tzinfo=UTC).timestamp()) * 1000


def day_of(unix_ms: int) -> str:
    """The date, as people write it in a message: `2026-12-01`."""
    return _moment(unix_ms).strftime("%Y-%m-%d")


def _moment(unix_ms: int) -> datetime:
    return datetime.fromtimestamp(unix_ms / 1000, tz=UTC)
