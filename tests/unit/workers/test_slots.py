"""Slots: never more than there are, the shortest class first, and each who asks gets one answer."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkle.schemas.priority import PriorityClass
from sparkle.workers.slots import Slots

P0, P1, P4 = PriorityClass.P0, PriorityClass.P1, PriorityClass.P4
LONG_S = 60.0


class Running:
    """The jobs that hold a slot."""

    def __init__(self, count: int = 0) -> None:
        self.count = count

    def __call__(self) -> int:
        return self.count


def asked(slots: Slots, priority: PriorityClass, wait_s: float = LONG_S) -> asyncio.Task[bool]:
    return asyncio.create_task(slots.reserve(priority, wait_s))


async def settled() -> None:
    """Let every task go as far as it can without the time passing."""
    for _ in range(3):
        await asyncio.sleep(0)


async def test_a_free_slot_is_kept_until_it_is_used() -> None:
    running = Running(1)
    slots = Slots(2, running)
    assert slots.free == 1
    assert await slots.reserve(P0, 0.0)
    assert slots.free == 0
    running.count += 1
    slots.release()
    assert slots.free == 0
    running.count -= 1
    slots.freed()
    assert slots.free == 1


def test_on_top_of_full_slots_a_job_may_come_for_each_longer_one_up_to_an_eighth() -> None:
    running = Running(16)
    slots = Slots(16, running)
    assert [slots.on_top(longer) for longer in (0, 1, 2, 9)] == [0, 1, 2, 2]
    running.count += 1
    assert [slots.on_top(longer) for longer in (0, 1, 2, 9)] == [0, 0, 1, 1]
    running.count += 1
    assert slots.on_top(9) == 0
    slots.close()
    running.count = 16
    assert slots.on_top(9) == 0
    assert Slots(1, Running(1)).on_top(1) == 1


async def test_without_a_free_slot_or_time_the_answer_is_no_at_once() -> None:
    slots = Slots(1, Running(1))
    assert not await slots.reserve(P0, 0.0)
    assert slots.free == 0


async def test_a_slot_that_the_queue_was_asked_for_is_left_for_its_answer() -> None:
    asked_for = 2
    slots = Slots(3, Running(1), lambda: asked_for)
    waiting = asked(slots, P0)
    assert not await slots.reserve(P0, 0.0)
    # one job came, and no more are there
    asked_for = 0
    slots.freed()
    assert await waiting
    assert slots.free == 1


async def test_who_waits_gets_the_slot_before_anybody_sees_it_free() -> None:
    running = Running(1)
    slots = Slots(1, running)
    waiting = asked(slots, P0)
    await settled()
    running.count = 0
    slots.freed()
    assert slots.free == 0
    assert await waiting


async def test_the_shortest_class_goes_first_and_among_equals_the_first() -> None:
    running = Running(1)
    slots = Slots(1, running)
    order: list[str] = []

    async def wait(name: str, priority: PriorityClass) -> None:
        assert await slots.reserve(priority, LONG_S)
        order.append(name)
        # what was kept goes to the next one
        slots.release()

    tasks = [
        asyncio.create_task(wait(name, priority))
        for name, priority in (("long", P4), ("first", P1), ("second", P1), ("short", P0))
    ]
    await settled()
    running.count = 0
    slots.freed()
    await asyncio.gather(*tasks)
    assert order == ["short", "first", "second", "long"]
    assert slots.free == 1


async def test_a_wait_ends_in_time_and_keeps_nothing() -> None:
    running = Running(1)
    slots = Slots(1, running)
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    assert not await slots.reserve(P0, 0.05)
    assert loop.time() - began_s >= 0.049
    running.count = 0
    slots.freed()
    assert slots.free == 1


async def test_closing_answers_no_to_all_and_for_good() -> None:
    running = Running(1)
    slots = Slots(1, running)
    waiting = [asked(slots, P0) for _ in range(3)]
    await settled()
    slots.close()
    assert await asyncio.gather(*waiting) == [False] * 3
    running.count = 0
    slots.freed()
    assert slots.free == 0
    assert not await slots.reserve(P0, LONG_S)


@pytest.mark.parametrize("granted", [False, True])
async def test_who_is_cancelled_keeps_nothing(granted: bool) -> None:
    running = Running(1)
    slots = Slots(1, running)
    waiting = asked(slots, P0)
    await settled()
    if granted:
        # the answer is there and the task has not yet seen it
        running.count = 0
        slots.freed()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    running.count = 0
    slots.freed()
    assert slots.free == 1


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.sampled_from(list(PriorityClass)), st.sampled_from([0.0, LONG_S])),
        st.tuples(st.sampled_from(["start", "drop", "end", "cancel"]), st.just(P0), st.just(0.0)),
    ),
    max_size=40,
)


@given(total=st.integers(1, 3), steps=STEPS)
async def test_whatever_happens_no_slot_is_given_twice_or_lost(
    total: int, steps: list[tuple[str, PriorityClass, float]]
) -> None:
    running = Running()
    slots = Slots(total, running)
    waiting: list[asyncio.Task[bool]] = []
    kept = 0
    for step, priority, wait_s in steps:
        match step:
            case "ask":
                waiting.append(asked(slots, priority, wait_s))
            case "start" if kept:
                kept -= 1
                running.count += 1
                slots.release()
            case "drop" if kept:
                kept -= 1
                slots.release()
            case "end" if running.count:
                running.count -= 1
                slots.freed()
            case "cancel" if waiting:
                waiting.pop(0).cancel()
            case _:
                pass
        await settled()
        kept += sum(task.done() and not task.cancelled() and task.result() for task in waiting)
        waiting = [task for task in waiting if not task.done()]
        assert kept + running.count <= total
        assert slots.free == total - kept - running.count
        # nobody waits beside a free slot
        assert not (slots.free and waiting)
    slots.close()
    assert not any(await asyncio.gather(*waiting))
