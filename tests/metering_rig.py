"""What tests of metering share: a clock set by hand, accounts in memory, records."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from sparkle.producers.metering.account import Account, Placed
from sparkle.producers.metering.clock import Clock
from sparkle.schemas.answer import FinishReason
from sparkle.schemas.control import UsageRecord
from sparkle.schemas.ids import job_id_from
from sparkle.schemas.priority import PriorityClass

NOVEMBER_MS = 1_796_079_600_000
"""An hour before the end of November 2026."""


@dataclass
class HandClock:
    """Time that passes when a test says so."""

    unix_s: float = NOVEMBER_MS / 1000
    steady_s: float = 1000.0

    @property
    def clock(self) -> Clock:
        return Clock(unix_s=lambda: self.unix_s, steady_s=lambda: self.steady_s)

    def pass_s(self, seconds: float) -> None:
        self.unix_s += seconds
        self.steady_s += seconds


def job_id(number: int) -> str:
    return job_id_from(NOVEMBER_MS, number)


def usage_record(job: str, prompt_tokens: int, completion_tokens: int = 0, **changes: object) -> UsageRecord:
    return UsageRecord(
        job=job,
        tenant="acme",
        region="local",
        worker="w1",
        attempt=1,
        priority=PriorityClass.P0,
        outcome=FinishReason.STOP,
        prompt_tokens=prompt_tokens,
        cached_tokens=0,
        completion_tokens=completion_tokens,
        drafted_tokens=0,
        accepted_tokens=0,
        queue_s=0.0,
        total_s=1.0,
        finished_ms=NOVEMBER_MS,
    ).evolve(**changes)


@dataclass
class AccountsInMemory:
    """One tenant's account and records, with the switches that a test of order needs."""

    account: bytes | None = None
    revision: int = 0
    records: list[Placed] = field(default_factory=list[Placed])

    async def load(self) -> tuple[Account, int]:
        await asyncio.sleep(0)
        stored = Account() if self.account is None else Account.model_validate_json(self.account)
        return stored, self.revision

    async def store(self, account: Account, *, revision: int) -> int | None:
        await asyncio.sleep(0)
        if revision != self.revision:
            return None
        self.account = account.model_dump_json().encode()
        self.revision += 1
        return self.revision

    async def records_after(self, seq: int) -> AsyncIterator[list[Placed]]:
        for one in [one for one in self.records if one.seq > seq]:
            await asyncio.sleep(0)
            yield [one]

    def add(self, record: UsageRecord | None) -> None:
        """A record comes; of a job that has one already it is refused, as the stream does."""
        if record is None or all(one.record is None or one.record.job != record.job for one in self.records):
            self.records.append(Placed(len(self.records) * 3 + 1, record))

    def now(self) -> Account:
        return Account() if self.account is None else Account.model_validate_json(self.account)
