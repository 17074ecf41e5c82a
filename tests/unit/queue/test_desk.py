"""What a puller remembers of one class."""

from __future__ import annotations

import pytest

from sparkle.queue.desk import Desk
from sparkle.queue.pull import HEALTHY, Pull, PullEnd
from sparkle.schemas.priority import PriorityClass


async def asked() -> Desk:
    return Desk(pull=Pull(PriorityClass.P0, "inbox", 1))


async def test_a_class_with_a_request_out_is_neither_asked_nor_waited_at() -> None:
    desk = await asked()
    assert not desk.wants_asking
    assert not desk.wants_waiting


@pytest.mark.parametrize(
    ("end", "wants_asking", "wants_waiting"),
    [
        (PullEnd.FILLED, True, False),
        (PullEnd.EMPTY, False, True),
        (PullEnd.MOVED, False, False),
        (PullEnd.MISSING, False, False),
        (PullEnd.REFUSED, False, False),
        (PullEnd.LOST, False, False),
    ],
)
async def test_how_it_goes_on_after_each_end(end: PullEnd, wants_asking: bool, wants_waiting: bool) -> None:
    desk = await asked()
    desk.ended(end, now_s=0.0)
    assert (desk.wants_asking, desk.wants_waiting) == (wants_asking, wants_waiting)
    assert desk.resting is (end not in HEALTHY)


async def test_a_bell_outweighs_an_empty_answer_that_may_be_older() -> None:
    desk = Desk()
    desk.ask(Pull(PriorityClass.P0, "inbox", 1))
    desk.ring()
    desk.ended(PullEnd.EMPTY, now_s=0.0)
    assert desk.wants_asking
    desk.ask(Pull(PriorityClass.P0, "inbox", 1))
    desk.ended(PullEnd.EMPTY, now_s=0.0)
    assert not desk.wants_asking


async def test_a_class_found_empty_after_its_bell_is_asked_once_more() -> None:
    """The bell can be heard before the consumer knows of the job."""
    desk = Desk(maybe=False)
    desk.ring()
    desk.ask(Pull(PriorityClass.P0, "inbox", 1))
    desk.ended(PullEnd.EMPTY, now_s=0.0)
    assert desk.in_doubt
    assert not desk.wants_asking
    desk.look_again()
    assert desk.wants_asking
    desk.ask(Pull(PriorityClass.P0, "inbox", 1))
    desk.ended(PullEnd.EMPTY, now_s=0.0)
    assert not desk.in_doubt
    desk.look_again()
    assert not desk.wants_asking


async def test_a_doubt_is_over_once_the_class_was_asked_or_had_work() -> None:
    desk = Desk(maybe=False)
    desk.ring()
    desk.ask(Pull(PriorityClass.P0, "inbox", 1))
    desk.ended(PullEnd.FILLED, now_s=0.0)
    assert not desk.in_doubt
    desk.ring()
    desk.ask(Pull(PriorityClass.P0, "inbox", 1))
    desk.ended(PullEnd.EMPTY, now_s=0.0)
    desk.ask(Pull(PriorityClass.P0, "inbox", 1, expires_s=1.0))
    desk.look_again()
    desk.ended(PullEnd.EMPTY, now_s=0.0)
    assert not desk.wants_asking


async def test_each_failure_in_a_row_doubles_the_rest_up_to_its_bound() -> None:
    desk = await asked()
    rests: list[float] = []
    for _ in range(6):
        desk.ended(PullEnd.LOST, now_s=0.0)
        rests.append(desk.backoff_s(2.0))
        desk.rested()
    assert rests == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0]
    desk.ended(PullEnd.FILLED, now_s=0.0)
    desk.ended(PullEnd.LOST, now_s=0.0)
    assert desk.backoff_s(2.0) == 0.1


async def test_it_is_missing_from_the_first_to_the_next_sound_answer() -> None:
    desk = await asked()
    desk.ended(PullEnd.MISSING, now_s=100.0)
    desk.ended(PullEnd.MISSING, now_s=120.0)
    assert desk.missing_s(130.0) == 30.0
    desk.ended(PullEnd.EMPTY, now_s=131.0)
    assert desk.missing_s(140.0) == 0.0


async def test_on_a_new_connection_everything_is_asked_again() -> None:
    desk = await asked()
    desk.ended(PullEnd.MISSING, now_s=0.0)
    desk.forget()
    assert desk.wants_asking
