"""Whatever gateways do at once, what may be used never comes to more than the allowance and one job."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkle.errors import AllowanceSpent, NotConnected, RateLimited
from sparkle.producers.metering.account import Account
from sparkle.producers.metering.ledger import Ledger
from sparkle.producers.metering.open_jobs import OpenJobs
from sparkle.producers.metering.settings import MeteringSettings
from tests.metering_rig import NOVEMBER_MS, AccountsInMemory, HandClock, job_id, usage_record

LEASE_S = 60.0


class Gateway:
    """A gateway as far as one tenant's account goes."""

    def __init__(self, store: AccountsInMemory, hand: HandClock, name: str) -> None:
        self.name = name
        self.recorded: list[tuple[int, int]] = []
        self.jobs = OpenJobs(lambda most, used: self.recorded.append((most, used)))
        self.ledger = Ledger(
            store,
            self.jobs,
            tenant="acme",
            gateway=name,
            settings=MeteringSettings(lease_s=LEASE_S, record_wait_s=30.0),
            clock=hand.clock,
        )


@dataclass
class World:
    """Gateways over one account, and what is known of every job."""

    allowance: int
    hand: HandClock = field(default_factory=HandClock)
    store: AccountsInMemory = field(default_factory=AccountsInMemory)
    gateways: list[Gateway] = field(default_factory=list[Gateway])
    running: dict[str, tuple[int, Gateway]] = field(default_factory=dict[str, tuple[int, Gateway]])
    most: int = 0
    used: int = 0
    count: int = 0

    def gateway(self) -> Gateway:
        made = Gateway(self.store, self.hand, f"g{len(self.gateways)}-{self.count}")
        self.gateways.append(made)
        return made

    async def reserve(self, gateway: Gateway, *tokens: int) -> None:
        """Ask for jobs of so many tokens; who is let in runs."""
        jobs = {job_id(self.count + number): most for number, most in enumerate(tokens)}
        self.count += len(jobs)
        try:
            await gateway.ledger.reserve(jobs, self.allowance)
        except (AllowanceSpent, RateLimited):
            return
        self.running |= {job: (most, gateway) for job, most in jobs.items()}
        self.most = max(self.most, *tokens)
        self.check()

    def finish(self, job: str, used: int, *, twice: bool) -> None:
        """The job ends; its record comes, perhaps twice."""
        _, gateway = self.running.pop(job)
        self.used += used
        for _ in range(1 + twice):
            self.store.add(usage_record(job, used))
        gateway.ledger.ended(job, accepted=True)

    def check(self) -> None:
        may_come = sum(most for most, _ in self.running.values())
        assert self.used + may_come <= self.allowance + self.most
        holds = self.store.now().holds
        for gateway in self.gateways:
            if gateway.jobs.needed_tokens:
                assert gateway.jobs.needed_tokens <= holds[gateway.name].tokens


step = st.tuples(
    st.sampled_from(
        ["reserve", "reserve", "reserve", "several", "finish", "finish", "drop", "settle", "count", "restart"]
    ),
    st.integers(0, 2),
    st.integers(1, 60),
)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 300), st.lists(st.lists(step, min_size=1, max_size=6), max_size=25))
def test_the_allowance_holds_under_any_order_of_things(
    allowance: int, rounds: list[list[tuple[str, int, int]]]
) -> None:
    """All steps of a round are taken at once; each await lets another go on."""

    async def take(world: World, what: str, which: int, size: int) -> None:
        gateway = world.gateways[which]
        match what:
            case "reserve":
                await world.reserve(gateway, size)
            case "several":
                await world.reserve(gateway, size, 7, 1)
            case "finish" if world.running:
                job = sorted(world.running)[size % len(world.running)]
                world.finish(job, size % (world.running[job][0] + 1), twice=which == 0)
            case "drop" if world.running:
                job = sorted(world.running)[size % len(world.running)]
                _, runs_at = world.running.pop(job)
                runs_at.ledger.ended(job, accepted=False)
            case "settle":
                await gateway.ledger.settle(world.allowance)
            case "count":
                account, revision = await world.store.load()
                async for placed in world.store.records_after(account.through_seq):
                    account = account.counting(placed)
                await world.store.store(account, revision=revision)
            case "restart" if all(runs_at is not gateway for _, runs_at in world.running.values()):
                # what it had set aside is nobody's until its lease ends
                world.gateways[which] = Gateway(world.store, world.hand, f"new-{world.count}-{size}")
            case _:
                pass

    async def run() -> None:
        world = World(allowance)
        for _ in range(3):
            world.gateway()
        for one_round in rounds:
            await asyncio.gather(*(take(world, *one) for one in one_round))
            world.check()
            world.hand.pass_s(1.0)
        for job, (most, _) in list(world.running.items()):
            world.finish(job, most, twice=False)
        for _ in range(3):
            for gateway in world.gateways:
                if gateway.ledger.wants_settling:
                    await gateway.ledger.settle(world.allowance)
            world.hand.pass_s(LEASE_S / 2)
        assert [len(gateway.jobs) for gateway in world.gateways] == [0, 0, 0]
        assert not any(gateway.ledger.wants_settling for gateway in world.gateways)
        # a gateway that died has not counted all that its jobs used
        await take(world, "count", 0, 0)
        account, now_ms = world.store.now(), int(world.hand.unix_s * 1000)
        assert account.spent(NOVEMBER_MS) == world.used <= world.allowance + world.most
        assert account.left(world.allowance, gateway="", now_ms=now_ms) == world.allowance - world.used

    asyncio.run(run())


async def test_plenty_is_given_without_a_write() -> None:
    world = World(1_000_000)
    gateway = world.gateway()
    await world.reserve(gateway, 100)
    written = world.store.revision
    for _ in range(50):
        await world.reserve(gateway, 1000)
    assert len(world.running) == 51
    assert world.store.revision == written == 1


async def test_spent_is_refused_with_the_day_on_which_it_begins_anew() -> None:
    world = World(100)
    gateway = world.gateway()
    await world.reserve(gateway, 60)
    await world.reserve(gateway, 60)
    assert len(world.running) == 2
    for job in list(world.running):
        world.finish(job, 60, twice=False)
    with pytest.raises(AllowanceSpent, match=r"100 tokens is spent \(120 used\).*2026-12-01") as refusal:
        await gateway.ledger.reserve({job_id(9): 1}, 100)
    assert refusal.value.resets_ms == NOVEMBER_MS + 3_600_000


async def test_what_running_jobs_may_use_up_is_refused_for_a_while() -> None:
    world = World(100)
    gateway = world.gateway()
    await world.reserve(gateway, 150)
    with pytest.raises(RateLimited, match="100 of this month's 100 tokens are left"):
        await gateway.ledger.reserve({job_id(9): 1}, 100)
    world.finish(job_id(0), 20, twice=False)
    await gateway.ledger.reserve({job_id(9): 1}, 100)


async def test_who_was_refused_gives_back_what_its_ended_jobs_had() -> None:
    world = World(100)
    gateway, other = world.gateway(), world.gateway()
    await world.reserve(gateway, 60)
    await world.reserve(gateway, 50)
    world.finish(job_id(0), 10, twice=False)
    # it has seen the record now, and the account still has both jobs' room
    with pytest.raises(RateLimited):
        await gateway.ledger.reserve({job_id(8): 60, job_id(9): 60}, 100)
    assert gateway.ledger.wants_settling
    await gateway.ledger.settle(100)
    await other.ledger.reserve({job_id(9): 1}, 100)


async def test_of_several_jobs_only_the_last_may_be_over() -> None:
    world = World(100)
    gateway = world.gateway()
    with pytest.raises(RateLimited):
        await gateway.ledger.reserve({job_id(1): 60, job_id(2): 60, job_id(3): 60}, 100)
    await gateway.ledger.reserve({job_id(1): 60, job_id(2): 60}, 100)


async def test_the_next_month_begins_with_a_whole_allowance() -> None:
    world = World(100)
    gateway = world.gateway()
    await world.reserve(gateway, 100)
    world.finish(job_id(0), 100, twice=False)
    await world.reserve(gateway, 10)
    assert not world.running
    world.hand.pass_s(3600.0)
    world.used = 0
    await world.reserve(gateway, 10)
    assert len(world.running) == 1


async def test_what_a_gateway_that_died_had_set_aside_comes_back() -> None:
    world = World(100)
    died, lives = world.gateway(), world.gateway()
    await world.reserve(died, 100)
    with pytest.raises(RateLimited):
        await lives.ledger.reserve({job_id(9): 10}, 100)
    world.hand.pass_s(LEASE_S)
    await lives.ledger.reserve({job_id(9): 10}, 100)


async def test_a_living_gateway_keeps_what_its_jobs_need() -> None:
    world = World(100)
    long, other = world.gateway(), world.gateway()
    await world.reserve(long, 100)
    for _ in range(10):
        world.hand.pass_s(LEASE_S / 2)
        assert long.ledger.wants_settling
        await long.ledger.settle(100)
    with pytest.raises(RateLimited):
        await other.ledger.reserve({job_id(9): 10}, 100)


async def test_a_job_that_never_ran_gives_its_room_to_the_next() -> None:
    world = World(100)
    gateway = world.gateway()
    await world.reserve(gateway, 100)
    gateway.ledger.ended(job_id(0), accepted=False)
    written = world.store.revision
    await gateway.ledger.reserve({job_id(9): 100}, 100)
    assert world.store.revision == written
    assert gateway.recorded == [(100, 0)]


async def test_a_record_that_never_comes_is_waited_for_only_so_long(caplog: pytest.LogCaptureFixture) -> None:
    world = World(100)
    gateway = world.gateway()
    await world.reserve(gateway, 50, 50)
    for number in range(2):
        gateway.ledger.ended(job_id(number), accepted=True)
    world.hand.pass_s(29.0)
    await gateway.ledger.settle(100)
    assert len(gateway.jobs) == 2
    world.hand.pass_s(1.0)
    with caplog.at_level(logging.WARNING):
        await gateway.ledger.settle(100)
    assert len(gateway.jobs) == 0
    # one event for all of them: where nobody meters it is every job
    assert [(record.getMessage(), vars(record)["jobs"]) for record in caplog.records] == [
        ("usage_missing", 2)
    ]


async def test_without_an_allowance_records_are_counted_and_nothing_set_aside() -> None:
    world = World(0)
    gateway, other = world.gateway(), world.gateway()
    await gateway.ledger.reserve({job_id(0): 500}, None)
    world.store.add(usage_record(job_id(0), 40, 2))
    # another one counts it first
    await other.ledger.settle(None)
    gateway.ledger.ended(job_id(0), accepted=True)
    assert gateway.ledger.wants_settling
    await gateway.ledger.settle(None)
    assert gateway.recorded == [(500, 42)]
    assert world.store.now().spent(NOVEMBER_MS) == 42
    assert world.store.now().holds == {}
    assert not gateway.ledger.wants_settling


class AwayStore(AccountsInMemory):
    """A store whose next write is done, and not confirmed."""

    is_away = False

    async def store(self, account: Account, *, revision: int) -> int | None:
        written = await super().store(account, revision=revision)
        if self.is_away:
            raise NotConnected("away")
        return written


async def test_after_a_write_that_may_be_done_nothing_is_given_on_trust() -> None:
    world = World(100, store=AwayStore())
    gateway = world.gateway()
    await world.reserve(gateway, 10)
    world.finish(job_id(0), 10, twice=False)
    AwayStore.is_away = True
    with pytest.raises(NotConnected):
        await gateway.ledger.settle(100)
    # the job's room is gone from memory, and its tokens may or may not be in the account
    with pytest.raises(NotConnected):
        await gateway.ledger.reserve({job_id(9): 5}, 100)
    AwayStore.is_away = False
    await gateway.ledger.reserve({job_id(9): 90}, 100)
    with pytest.raises(RateLimited):
        await gateway.ledger.reserve({job_id(10): 1}, 100)
    assert world.store.now().spent(NOVEMBER_MS) == 10


async def test_while_the_account_is_written_nobody_takes_of_the_room_there_was() -> None:
    world = World(200)
    gateway = world.gateway()
    await world.reserve(gateway, 100)
    gateway.ledger.ended(job_id(0), accepted=False)
    world.running.clear()
    await asyncio.gather(world.reserve(gateway, 150), world.reserve(gateway, 45))
    assert len(world.running) == 2


async def test_room_is_taken_on_trust_only_well_within_its_lease() -> None:
    world = World(1_000_000)
    gateway = world.gateway()
    await world.reserve(gateway, 100)
    world.hand.pass_s(0.75 * LEASE_S)
    await world.reserve(gateway, 100)
    assert world.store.revision == 2
