"""What a tenant has used, month by month, and what gateways have set aside: values only. Knows no store.

An account is a fold over the stream of usage records up to one place of it, `through_seq`, and is stored as
one value with it. So whoever counts, and however often, a record is in it once: what stands at or before that
place is in, what stands behind it is not.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pydantic import Field

from sparkle.producers.metering.months import Month, month_of
from sparkle.schemas.answer import Count
from sparkle.schemas.control import UsageRecord
from sparkle.schemas.message import Milliseconds, Part

MONTHS_KEPT = 36
"""Older ones leave an account, so that it stays small."""


@dataclass(frozen=True, slots=True)
class Placed:
    """What stands at one place of the stream of a tenant's records."""

    seq: int
    record: UsageRecord | None
    """None: what stands there is no record."""


class MonthUsage(Part):
    """What the jobs that ended in one month used."""

    jobs: Count = 0
    prompt_tokens: Count = 0
    cached_tokens: Count = 0
    """Of the prompts' tokens those that were read from a cache."""

    completion_tokens: Count = 0

    @property
    def tokens(self) -> int:
        """What counts against an allowance: prompts, cached or not, and answers."""
        return self.prompt_tokens + self.completion_tokens

    def plus(self, record: UsageRecord) -> MonthUsage:
        """With one more job."""
        return MonthUsage(
            jobs=self.jobs + 1,
            prompt_tokens=self.prompt_tokens + record.prompt_tokens,
            cached_tokens=self.cached_tokens + record.cached_tokens,
            completion_tokens=self.completion_tokens + record.completion_tokens,
        )


class Hold(Part):
    """What one gateway has set aside for its running jobs."""

    tokens: Count
    expires_ms: Milliseconds
    """From then on it counts no more, if the gateway has not renewed it: it is gone."""


class Account(Part):
    """One tenant's."""

    through_seq: Count = 0
    """All records up to this place of the stream are in, and none behind it."""

    months: dict[Month, MonthUsage] = Field(default_factory=dict[str, MonthUsage])
    holds: dict[str, Hold] = Field(default_factory=dict[str, Hold])
    """By gateway."""

    def counting(self, placed: Iterable[Placed]) -> Account:
        """With all records that are not yet in; those that are may be among them."""
        months, through_seq = dict(self.months), self.through_seq
        for one in placed:
            if one.seq <= through_seq:
                continue
            through_seq = one.seq
            if one.record is not None:
                month = month_of(one.record.finished_ms)
                months[month] = months.get(month, MonthUsage()).plus(one.record)
        kept = dict(sorted(months.items())[-MONTHS_KEPT:])
        return self.model_copy(update={"months": kept, "through_seq": through_seq})

    def holding(self, gateway: str, tokens: int, *, expires_ms: int, now_ms: int) -> Account:
        """With so much set aside by `gateway` in place of what it had, and without what has expired."""
        holds = self._others(gateway, now_ms)
        if tokens:
            holds[gateway] = Hold(tokens=tokens, expires_ms=expires_ms)
        return self.model_copy(update={"holds": holds})

    def spent(self, now_ms: int) -> int:
        """Tokens of this month's records."""
        return self.months.get(month_of(now_ms), MonthUsage()).tokens

    def left(self, allowance_tokens: int, *, gateway: str, now_ms: int) -> int:
        """What this month's allowance has for the jobs of `gateway`; can be below 0."""
        others = sum(hold.tokens for hold in self._others(gateway, now_ms).values())
        return allowance_tokens - self.spent(now_ms) - others

    def _others(self, gateway: str, now_ms: int) -> dict[str, Hold]:
        return {
            name: hold for name, hold in self.holds.items() if name != gateway and hold.expires_ms > now_ms
        }
