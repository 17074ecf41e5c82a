"""The line of those that wait: whose turn it is, and who may go ahead of one that does not fit."""

from __future__ import annotations

import math
from itertools import cycle

from hypothesis import given, settings
from hypothesis import strategies as st

from sparkle.engine.order import by_work, first_overdue
from sparkle.engine.plan import Drawn, PassPlan, PassResult
from sparkle.engine.request import Request, RequestState
from sparkle.engine.scheduler import Scheduler
from sparkle.engine.waiting import Waiting
from sparkle.schemas.priority import PriorityClass, target_s
from tests.unit.engine.made_requests import request

P0, P1, P2, P3, P4 = PriorityClass


def line(*requests: Request) -> Waiting:
    made = Waiting()
    for one in requests:
        made.add(one)
    return made


def draw(plan: PassPlan) -> PassResult:
    return PassResult(drawn=tuple(Drawn(request=span.request, token=5) for span in plan.spans if span.draws))


def test_the_first_one_that_fits_goes_ahead_until_the_other_is_overdue() -> None:
    big, small, long = (
        request("1", 60, arrival=1),
        request("2", 100, P2, arrival=2),
        request("3", 30, P3, arrival=3, arrived_s=3.0),
    )
    waiting = line(long, small, big)
    assert waiting.first(3.9) is waiting.shortest is big
    assert waiting.passing(3.9, lambda _: True) is small
    assert waiting.passing(3.9, lambda one: one is long) is long
    assert waiting.passing(3.9, lambda _: False) is None
    assert waiting.first(4.0) is big
    assert waiting.passing(4.0, lambda _: True) is None
    waiting.remove(big)
    assert waiting.first(4.0) is small
    assert [*waiting] == [small, long]


found = st.tuples(
    st.integers(1, 200),
    st.sampled_from(PriorityClass),
    st.floats(0.0, 300.0),
    st.sampled_from([50.0, math.inf]),
)


@given(st.lists(found, max_size=20), st.data())
def test_it_is_the_order_of_all_that_wait_whatever_comes_and_goes(
    given_requests: list[tuple[int, PriorityClass, float, float]], data: st.DataObject
) -> None:
    waiting, here = Waiting(), list[Request]()
    # who comes later arrives later
    by_time = sorted(given_requests, key=lambda one: one[2])
    requests = [
        request(str(arrival), tokens, priority, arrival=arrival, arrived_s=arrived_s, deadline_s=deadline_s)
        for arrival, (tokens, priority, arrived_s, deadline_s) in enumerate(by_time)
    ]
    for one in data.draw(st.permutations(requests)):
        waiting.add(one)
        here.append(one)
        if data.draw(st.booleans()):
            gone = data.draw(st.sampled_from(here))
            waiting.remove(gone)
            here.remove(gone)
    now_s = data.draw(st.floats(0.0, 600.0))
    fitting = data.draw(st.sets(st.sampled_from(here))) if here else set[Request]()
    assert [*waiting] == sorted(here, key=by_work)
    assert len(waiting) == len(here)
    first = min(here, key=by_work, default=None)
    overdue = first_overdue(here, now_s)
    assert waiting.shortest is first
    assert waiting.first(now_s) is (overdue or first)
    others = fitting - {first} if overdue is None else set[Request]()
    assert waiting.passing(now_s, lambda one: one in fitting) is min(others, key=by_work, default=None)


arriving = st.lists(
    st.tuples(st.integers(1, 40), st.integers(1, 12), st.sampled_from(PriorityClass)), max_size=4
)


@settings(max_examples=60, deadline=None)
@given(
    priority=st.sampled_from([P0, P1]),
    big_tokens=st.integers(100, 150),
    hostile=st.lists(arriving, min_size=1, max_size=6),
    pass_s=st.sampled_from([0.05, 0.3]),
)
def test_a_big_one_waits_for_its_target_and_what_runs_then_whatever_arrives(
    priority: PriorityClass,
    big_tokens: int,
    hostile: list[list[tuple[int, int, PriorityClass]]],
    pass_s: float,
) -> None:
    planner = Scheduler(num_slots=8, num_pages=40, page_tokens=4, pass_tokens=64, chunk_tokens=64)
    planner.add(request("0", 40, P0, max_answer_tokens=12))
    planner.apply(draw(planner.schedule(0.0)))
    big = request("1", big_tokens, priority, max_answer_tokens=160 - big_tokens)
    planner.add(big)
    now_s, others, overdue_passes = 0.0, list[Request](), 0
    for arrivals in cycle(hostile):
        for tokens, answer, of in arrivals:
            others.append(
                request(str(2 + len(others)), tokens, of, arrived_s=now_s, max_answer_tokens=answer)
            )
            planner.add(others[-1])
        waiting = [one for one in others if one.state is RequestState.WAITING]
        planner.apply(draw(planner.schedule(now_s)))
        planner.check_integrity()
        if big.state is not RequestState.WAITING:
            break
        if now_s >= target_s(priority):
            overdue_passes += 1
            assert all(one.state is RequestState.WAITING for one in waiting), "others are admitted meanwhile"
        now_s += pass_s
    # of eight that run one is read in every fourth pass at least, and they write 12
    assert overdue_passes <= 4 * 8 + 12
    assert now_s <= target_s(priority) + pass_s * (1 + overdue_passes)
