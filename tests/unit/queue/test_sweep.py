"""The order in which classes are asked: shortest first, and none starves."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkle.errors import ConfigError
from sparkle.queue.sweep import IN_TIME_S, SweepOrder
from sparkle.schemas.priority import PriorityClass

P0, P1, P2, P3, P4 = PriorityClass

waits = st.dictionaries(st.sampled_from(PriorityClass), st.floats(0, 1e6), min_size=1)


def take(order: SweepOrder, waiting: dict[PriorityClass, float], slots: int) -> list[PriorityClass]:
    """Fill `slots` as a worker does; classes in `waiting` never run out, jobs of each waited so long."""
    taken: list[PriorityClass] = []
    while len(taken) < slots:
        turn = order.next_turn()
        assert sorted(turn.classes) == list(PriorityClass)
        assert turn.most >= 1
        for priority in turn.classes:
            if priority not in waiting:
                order.empty(priority)
                continue
            for _ in range(min(turn.most, slots - len(taken))):
                order.pulled(priority, waited_s=waiting[priority], pending=1)
                taken.append(priority)
            break
    return taken


def test_in_time_the_shortest_class_goes_first() -> None:
    assert SweepOrder().next_turn().classes == (P0, P1, P2, P3, P4)
    assert take(SweepOrder(), {P1: 0.0, P3: 0.0}, 7) == [P1] * 7


def test_every_eighth_job_is_of_the_class_unserved_longest() -> None:
    assert take(SweepOrder(), {P0: 0.0, P3: 0.0, P4: 0.0}, 24) == [
        *[P0] * 7, P3,
        *[P0] * 7, P4,
        *[P0] * 7, P3,
    ]  # fmt: skip


def test_a_late_class_goes_before_those_in_time_and_the_most_late_first() -> None:
    order = SweepOrder()
    order.pulled(P3, waited_s=2 * IN_TIME_S[P3], pending=5)
    order.pulled(P2, waited_s=3 * IN_TIME_S[P2], pending=5)
    order.pulled(P1, waited_s=0.5 * IN_TIME_S[P1], pending=5)
    assert order.next_turn().classes == (P2, P3, P0, P1, P4)


def test_the_last_job_of_a_class_leaves_it_in_time() -> None:
    order = SweepOrder()
    order.pulled(P3, waited_s=2 * IN_TIME_S[P3], pending=0)
    assert order.next_turn().classes == (P0, P1, P2, P3, P4)


@given(waiting=waits, share_every=st.integers(2, 12))
def test_no_class_with_work_starves(waiting: dict[PriorityClass, float], share_every: int) -> None:
    bound = share_every * len(PriorityClass)
    taken = take(SweepOrder(share_every), waiting, 4 * bound)
    for priority in waiting:
        served = [-1, *(place for place, one in enumerate(taken) if one is priority), len(taken)]
        assert max(later - earlier for earlier, later in pairwise(served)) <= bound


@given(waiting=waits)
def test_most_jobs_are_not_shared_out(waiting: dict[PriorityClass, float]) -> None:
    """Seven of eight go where the order says: without late classes, to the shortest with work."""
    in_time = dict.fromkeys(waiting, 0.0)
    taken = take(SweepOrder(), in_time, 80)
    assert taken.count(min(waiting)) >= 70


def test_a_share_of_every_job_is_refused() -> None:
    with pytest.raises(ConfigError, match="share_every is 1 but must be at least 2"):
        SweepOrder(1)
