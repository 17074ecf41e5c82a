"""A producer that answers keeps its job alive; without one the answer is stored, and the job ends at last."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from sparkle.errors import NotConnected
from sparkle.schemas.answered import Answered
from sparkle.schemas.ids import new_job_id
from sparkle.workers.consumer_watch import ConsumerWatch

JOB = new_job_id()
TENANT = "acme"
AWAY_S = 0.02


@dataclass
class Records:
    """A producer that is there or not, by what `there` says to the number of the question."""

    there: Callable[[int], bool]
    cut_off: Callable[[int], bool] = lambda _number: False
    asked: list[int] = field(default_factory=list[int])
    stored: list[Answered] = field(default_factory=list[Answered])
    enough: asyncio.Event = field(default_factory=asyncio.Event)

    async def ask(self, tenant: str, job: str, from_index: int) -> Answered | None:
        assert (tenant, job) == (TENANT, JOB)
        self.asked.append(from_index)
        number = len(self.asked)
        if number == 30:
            self.enough.set()
        if self.cut_off(number):
            raise NotConnected("cut off")
        return Answered(job=job, attempt=1, tokens=[]) if self.there(number) else None

    async def store(self, tenant: str, answered: Answered) -> None:
        assert tenant == TENANT
        self.stored.append(answered)


@dataclass
class Watched:
    """One job that writes a token whenever it is looked at, up to 12."""

    records: Records
    detached: bool = False
    tokens: list[int] = field(default_factory=list[int])
    gone: asyncio.Event = field(default_factory=asyncio.Event)

    def record(self) -> Answered:
        if len(self.tokens) < 12:
            self.tokens.append(7)
        return Answered(job=JOB, attempt=1, tokens=[*self.tokens])

    async def watch(self) -> ConsumerWatch:
        """Until the job is given up, or the producer was asked 30 times."""
        watch = ConsumerWatch(
            self.records, TENANT, self.record, self.gone.set, away_s=AWAY_S, detached=self.detached
        )
        ends = {asyncio.create_task(event.wait()) for event in (self.gone, self.records.enough)}
        task = asyncio.create_task(watch.run())
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for one in (*ends, task):
            one.cancel()
        for one in (*ends, task):
            with contextlib.suppress(asyncio.CancelledError):
                await one
        return watch


async def test_one_that_answers_keeps_its_job_and_is_asked_for_nothing_it_has() -> None:
    watched = Watched(Records(lambda _number: True))
    watch = await watched.watch()
    assert not watched.gone.is_set()
    assert not watch.is_away
    assert watched.records.asked[:3] == [1, 2, 3]
    assert watched.records.stored == []


async def test_without_one_the_answer_is_stored_and_then_given_up() -> None:
    watched = Watched(Records(lambda number: number <= 2))
    watch = await watched.watch()
    assert watched.gone.is_set()
    assert watch.is_away
    lengths = [len(one.tokens) for one in watched.records.stored]
    assert lengths == sorted(set(lengths))
    assert lengths


async def test_one_that_comes_back_in_time_keeps_its_job() -> None:
    watched = Watched(Records(lambda number: number % 2 == 0))
    await watched.watch()
    assert not watched.gone.is_set()


async def test_a_detached_job_goes_on_and_is_stored_only_when_there_is_more() -> None:
    watched = Watched(Records(lambda _number: False), detached=True)
    await watched.watch()
    assert not watched.gone.is_set()
    assert len(watched.records.stored) < 12
    assert len(watched.records.stored[-1].tokens) == 12


@pytest.mark.parametrize("every", [1, 2])
async def test_time_in_which_the_worker_is_cut_off_does_not_count(every: int) -> None:
    watched = Watched(Records(lambda _number: False, lambda number: number % every == 0))
    await watched.watch()
    assert not watched.gone.is_set()
