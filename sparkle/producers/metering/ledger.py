"""One tenant's jobs at one gateway: room set aside before they run, given back when their records are in.

The room of all gateways and what the records say never come to more than the allowance and one job. A gateway
sets aside more than its jobs need while there is plenty, and then admits jobs without a write; the less is
left, the fewer. Knows no NATS and no HTTP.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Mapping
from typing import Protocol

from sparkle.errors import AllowanceSpent, RateLimited
from sparkle.producers.metering.account import Account, Placed
from sparkle.producers.metering.clock import Clock
from sparkle.producers.metering.contention import MOST_CONFLICTS, contended, pause
from sparkle.producers.metering.months import day_of, next_month_ms
from sparkle.producers.metering.open_jobs import OpenJobs
from sparkle.producers.metering.settings import MeteringSettings

log = logging.getLogger(__name__)

SPARE_SHARE = 16
"""Of what is left, one part in so many is set aside for jobs to come."""

_ROOM_SHARE, _RENEWAL_SHARE = 0.75, 0.5
"""Of a lease: so much of it jobs are admitted under it, and after so much it is renewed."""

_RETRY_AFTER_S = 2.0


class AccountStore(Protocol):
    """Where an account lies, and the records that it counts: `accounts.AccountFile`."""

    async def load(self) -> tuple[Account, int]:
        """The account and its revision; an empty one at revision 0 where there is none. Raises QueueError."""
        ...

    async def store(self, account: Account, *, revision: int) -> int | None:
        """The new revision; None when another write was faster. Raises QueueError."""
        ...

    def records_after(self, seq: int) -> AsyncIterator[list[Placed]]:
        """What stands behind this place, in order. Raises QueueError."""
        ...


class Ledger:
    """The jobs of one tenant here."""

    def __init__(
        self,
        store: AccountStore,
        jobs: OpenJobs,
        *,
        tenant: str,
        gateway: str,
        settings: MeteringSettings,
        clock: Clock,
    ) -> None:
        """`gateway` names this process among all gateways that ever were."""
        self._store = store
        self._jobs = jobs
        self._tenant = tenant
        self._gateway = gateway
        self._settings = settings
        self._clock = clock
        self._lock = asyncio.Lock()
        self._seen_seq: int | None = None
        # the account as last written and its revision; None when that may no longer be so
        self._known: tuple[Account, int] | None = None
        # what jobs may be given without a write, and until when; none while the account is being written
        self._room_tokens = 0
        self._written_s = -math.inf
        # whether the account has set aside for us what we think
        self._is_settled = True
        self._was_used = False

    async def reserve(self, jobs: Mapping[str, int], allowance_tokens: int | None) -> None:
        """Set aside the most tokens, at least 1, that each of these new jobs can use, by id: all or none.

        Raises AllowanceSpent, RateLimited when running jobs may use up what is left, QueueError.
        """
        if not self._may_start(jobs, allowance_tokens):
            async with self._lock:
                if self._seen_seq is None:
                    await self._read()
                if allowance_tokens is not None and not self._has_room(jobs):
                    await self._make_room(jobs, allowance_tokens)
        # nothing is awaited since there was room
        self._was_used = True
        self._jobs.start(jobs)

    def ended(self, job: str, *, accepted: bool) -> None:
        """A job has ended; not `accepted`, it never ran and no record of it will come."""
        if accepted:
            self._jobs.ended(job, self._clock.steady_s())
        else:
            # its room stays ours until the next write: for jobs to come
            self._jobs.leave(job, used_tokens=0)

    @property
    def wants_settling(self) -> bool:
        """Whether records are to come, or room is to be renewed or given back."""
        is_old = self._age_s() >= _RENEWAL_SHARE * self._settings.lease_s
        is_due = is_old and (self._room_tokens > 0 or len(self._jobs) > 0)
        return self._jobs.has_ended_ones or is_due or not self._is_settled

    async def settle(self, allowance_tokens: int | None) -> None:
        """Count the records that have come and give back the room of their jobs. Raises QueueError."""
        async with self._lock:
            was_used, self._was_used = self._was_used, False
            for attempt in range(MOST_CONFLICTS):
                account, revision = await self._read()
                spare_tokens = self._spare(account, allowance_tokens) if was_used else 0
                needed_tokens = 0 if allowance_tokens is None else self._jobs.needed_tokens
                if await self._put(account, revision, needed_tokens + spare_tokens):
                    return
                await pause(attempt)
            raise contended(f"the account of {self._tenant}")

    async def _make_room(self, jobs: Mapping[str, int], allowance_tokens: int) -> None:
        for attempt in range(MOST_CONFLICTS):
            is_fresh = self._known is None
            account, revision = await self._read() if self._known is None else self._known
            needed_tokens = self._jobs.needed_tokens + sum(jobs.values())
            # the last of them may take it over the allowance, as a single one may
            if needed_tokens - max(jobs.values()) < self._left(account, allowance_tokens):
                spare_tokens = self._spare(account, allowance_tokens, more_tokens=sum(jobs.values()))
                if await self._put(account, revision, needed_tokens + spare_tokens):
                    return
                await pause(attempt)
            elif is_fresh:
                raise self._refusal(account, allowance_tokens)
            self._known = None
        raise contended(f"the account of {self._tenant}")

    async def _read(self) -> tuple[Account, int]:
        """The account with all records counted, and its revision; their jobs need no room from here on."""
        account, revision = await self._store.load()
        seen_seq = account.through_seq if self._seen_seq is None else self._seen_seq
        async for placed in self._store.records_after(min(seen_seq, account.through_seq)):
            # what their jobs had is for nobody until it is written that they used it
            self._room_tokens, self._is_settled = 0, False
            for one in placed:
                if one.record is not None:
                    self._jobs.leave(one.record.job, one.record.prompt_tokens + one.record.completion_tokens)
            account = account.counting(placed)
            seen_seq = max(seen_seq, placed[-1].seq)
        self._seen_seq = seen_seq
        self._room_tokens, self._is_settled = 0, False
        self._forget_overdue()
        return account, revision

    async def _put(self, account: Account, revision: int, tokens: int) -> bool:
        """Write the account with so much set aside; False when another gateway was faster."""
        # after an error nobody knows whether it was written
        self._known, self._room_tokens, self._is_settled = None, 0, False
        began_s, now_ms = self._clock.steady_s(), self._clock.unix_ms()
        expires_ms = now_ms + int(self._settings.lease_s * 1000)
        wanted = account.holding(self._gateway, tokens, expires_ms=expires_ms, now_ms=now_ms)
        written = await self._store.store(wanted, revision=revision)
        if written is None:
            return False
        self._known = (wanted, written)
        self._room_tokens, self._written_s, self._is_settled = tokens, began_s, True
        return True

    def _forget_overdue(self) -> None:
        overdue = self._jobs.ended_before(self._clock.steady_s() - self._settings.record_wait_s)
        for job in overdue:
            self._jobs.leave(job, used_tokens=0)
        if overdue:
            # where nobody meters it is every job: once for all, and one of them by its id
            missing = {"tenant": self._tenant, "jobs": len(overdue), "job": overdue[0]}
            log.warning("usage_missing", extra=missing)

    def _may_start(self, jobs: Mapping[str, int], allowance_tokens: int | None) -> bool:
        """Whether no account needs to be read first: a record that came before the first look is not seen."""
        return self._seen_seq is not None and (allowance_tokens is None or self._has_room(jobs))

    def _has_room(self, jobs: Mapping[str, int]) -> bool:
        needed_tokens = self._jobs.needed_tokens + sum(jobs.values())
        return needed_tokens <= self._room_tokens and self._age_s() < _ROOM_SHARE * self._settings.lease_s

    def _age_s(self) -> float:
        return self._clock.steady_s() - self._written_s

    def _left(self, account: Account, allowance_tokens: int) -> int:
        return account.left(allowance_tokens, gateway=self._gateway, now_ms=self._clock.unix_ms())

    def _spare(self, account: Account, allowance_tokens: int | None, *, more_tokens: int = 0) -> int:
        if allowance_tokens is None:
            return 0
        left_tokens = self._left(account, allowance_tokens) - self._jobs.needed_tokens - more_tokens
        return max(0, left_tokens) // SPARE_SHARE

    def _refusal(self, account: Account, allowance_tokens: int) -> AllowanceSpent | RateLimited:
        now_ms = self._clock.unix_ms()
        spent_tokens = account.spent(now_ms)
        if spent_tokens < allowance_tokens:
            return RateLimited(
                f"{allowance_tokens - spent_tokens} of this month's {allowance_tokens} tokens are left, and "
                "running jobs may use them up; try again when some of them have ended",
                retry_after_s=_RETRY_AFTER_S,
            )
        resets_ms = next_month_ms(now_ms)
        return AllowanceSpent(
            f"this month's allowance of {allowance_tokens} tokens is spent ({spent_tokens} used); it begins "
            f"anew on {day_of(resets_ms)} UTC",
            resets_ms=resets_ms,
        )
