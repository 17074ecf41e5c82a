"""Keys, allowances and limits of all tenants at one gateway: its `Access`. Knows no HTTP."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from sparkle.errors import ContractError, KeyRefused, QueueError
from sparkle.producers.gateway.access import Principal
from sparkle.producers.metering.accounts import AccountFile
from sparkle.producers.metering.clock import Clock
from sparkle.producers.metering.directory import TenantDirectory
from sparkle.producers.metering.ledger import Ledger
from sparkle.producers.metering.open_jobs import OpenJobs
from sparkle.producers.metering.rates import Rates
from sparkle.producers.metering.settings import MeteringSettings
from sparkle.producers.metering.tenant import Tenant
from sparkle.producers.metering.tenant_book import TenantBook
from sparkle.queue.connection import Connection
from sparkle.queue.key_values import KeyValues
from sparkle.queue.usage_streams import BUCKET

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Till:
    """One tenant here."""

    jobs: OpenJobs
    ledger: Ledger
    rates: Rates
    num_starting: int = 0
    """Jobs whose tokens are being set aside."""


class Metering:
    """Made by `open_metering`."""

    def __init__(self, connection: Connection, settings: MeteringSettings, clock: Clock) -> None:
        """Lets nobody in until its directory is loaded."""
        self._connection = connection
        self._settings = settings
        self._clock = clock
        self._values = KeyValues(connection, BUCKET)
        # among all gateways that ever were: what another one has set aside is not ours
        self._gateway = secrets.token_hex(8)
        self.directory = TenantDirectory(TenantBook(self._values), clock)
        self._tills: dict[str, _Till] = {}

    async def authenticate(self, key: str | None) -> Principal:
        """Whose key this is. Raises KeyRefused, NotConnected while the metering account is away for long."""
        tenant = self.directory.of_key(key)
        return Principal(tenant=tenant.name, region=tenant.region, models=tenant.models)

    async def reserve(self, principal: Principal, jobs: Mapping[str, int]) -> Reserved:
        """Set aside the most tokens that each of these new jobs can use, by id: all of them or none.

        Raises AllowanceSpent, RateLimited, KeyRefused for a tenant that is gone, AccessError for more jobs
        than may ever run at once, QueueError.
        """
        tenant = self.directory.named(principal.tenant)
        if tenant is None:
            raise KeyRefused("the tenant of this key is gone")
        till = self._till_of(tenant)
        num_running = till.jobs.num_running + till.num_starting
        till.rates.start(jobs, num_running=num_running, now_s=self._clock.steady_s())
        till.num_starting += len(jobs)
        try:
            await till.ledger.reserve(jobs, tenant.allowance_tokens)
        except BaseException:
            till.rates.refused(jobs)
            raise
        finally:
            till.num_starting -= len(jobs)
        return Reserved(till.ledger)

    async def settle(self) -> None:
        """Look for the records of ended jobs. Raises QueueError, InvalidMessage, after all tenants' turn."""
        await _each(self._settle, [name for name, till in self._tills.items() if till.ledger.wants_settling])

    async def count(self) -> None:
        """Count the records of all tenants. Raises QueueError, InvalidMessage, after all tenants' turn."""
        await _each(self._count, self.directory.names())

    async def keep_settling(self) -> None:
        """Settle and count at their times, for ever; trouble is told once, and ends with the next success."""
        is_well, counted_s = True, self._clock.steady_s()
        while True:
            await asyncio.sleep(self._settings.settle_s)
            try:
                await self.settle()
                if self._clock.steady_s() - counted_s >= self._settings.count_s:
                    await self.count()
                    counted_s = self._clock.steady_s()
                is_well = True
            except (QueueError, ContractError) as error:
                if is_well:
                    log.warning("usage_uncounted", extra={"error": type(error).__name__})
                is_well = False

    async def _settle(self, name: str) -> None:
        tenant = self.directory.named(name)
        await self._tills[name].ledger.settle(None if tenant is None else tenant.allowance_tokens)

    async def _count(self, name: str) -> None:
        await AccountFile(self._connection, self._values, name).count()

    def _till_of(self, tenant: Tenant) -> _Till:
        till = self._tills.get(tenant.name)
        if till is None:
            till = self._tills[tenant.name] = self._new_till(tenant)
        if till.rates.limits != tenant.limits:
            till.rates = Rates(tenant.limits)
        return till

    def _new_till(self, tenant: Tenant) -> _Till:
        def recorded(most_tokens: int, used_tokens: int) -> None:
            self._tills[tenant.name].rates.recorded(most_tokens, used_tokens)

        jobs = OpenJobs(recorded)
        ledger = Ledger(
            AccountFile(self._connection, self._values, tenant.name),
            jobs,
            tenant=tenant.name,
            gateway=self._gateway,
            settings=self._settings,
            clock=self._clock,
        )
        return _Till(jobs, ledger, Rates(tenant.limits))


class Reserved:
    """What was set aside for some jobs."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def ended(self, job: str, *, accepted: bool) -> None:
        """The job has ended, however; not `accepted`, the queue never held it. Never raises."""
        self._ledger.ended(job, accepted=accepted)


@asynccontextmanager
async def open_metering(
    connection: Connection, settings: MeteringSettings, clock: Clock | None = None
) -> AsyncGenerator[Metering]:
    """Metering over a connection to the metering account, with its tenants read and kept up to date.

    Raises TopologyMissing where that account holds nothing yet, NotConnected.
    """
    metering = Metering(connection, settings, clock or Clock())
    directory = metering.directory

    async def changed(tenant: Tenant) -> None:
        directory.put(tenant)

    subscription = await TenantBook(KeyValues(connection, BUCKET)).watch(changed)
    try:
        await directory.load()
        running = [asyncio.create_task(work) for work in (directory.keep_up(), metering.keep_settling())]
        try:
            yield metering
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
    finally:
        await subscription.stop()


async def _each(step: Callable[[str], Awaitable[None]], tenants: Iterable[str]) -> None:
    """One step for each of them: what is wrong with one holds up no other."""
    wrong: QueueError | ContractError | None = None
    for tenant in tenants:
        try:
            await step(tenant)
        except (QueueError, ContractError) as error:
            wrong = wrong or error
    if wrong is not None:
        raise wrong
