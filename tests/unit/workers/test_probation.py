"""Whose fault it is that engines end: the one job that was in all of them, and no other."""

from __future__ import annotations

import asyncio

from sparkle.workers.probation import MAX_STRIKES, SUSPECT_STRIKES, Probation


async def test_without_a_suspect_every_job_in_the_engine_has_a_strike_more() -> None:
    probation = Probation()
    for job in ("a", "b"):
        await probation.enter(job, 0)
    assert [probation.strikes_after(job, 0) for job in ("a", "b")] == [1, 1]
    assert probation.strikes_after("a", SUSPECT_STRIKES) == MAX_STRIKES


async def test_suspects_go_in_one_at_a_time_and_the_one_that_is_in_has_the_strike() -> None:
    probation = Probation()
    await probation.enter("first", SUSPECT_STRIKES)
    second = asyncio.create_task(probation.enter("second", SUSPECT_STRIKES))
    # as far as it gets by itself
    await asyncio.sleep(0)
    # others do not wait
    await probation.enter("other", SUSPECT_STRIKES - 1)
    assert not second.done()
    assert probation.strikes_after("other", 1) == 1
    assert probation.strikes_after("first", SUSPECT_STRIKES) == MAX_STRIKES
    probation.clear("other")
    probation.clear("second")
    assert not second.done()
    probation.clear("first")
    await second
    assert probation.strikes_after("second", SUSPECT_STRIKES) == MAX_STRIKES
    probation.clear("second")
    # again is fine
    probation.clear("second")


async def test_a_suspect_that_is_cancelled_while_it_waits_holds_nobody_up() -> None:
    probation = Probation()
    await probation.enter("first", SUSPECT_STRIKES)
    second = asyncio.create_task(probation.enter("second", SUSPECT_STRIKES))
    await asyncio.sleep(0)
    second.cancel()
    await asyncio.wait({second})
    probation.clear("second")
    probation.clear("first")
    await probation.enter("third", SUSPECT_STRIKES)
