"""Who goes first: shortest first, nothing waits for ever, and a question is read beside any document."""

from __future__ import annotations

import math
from itertools import cycle

from hypothesis import example, given, settings
from hypothesis import strategies as st

from sparkle.engine.order import is_overdue, next_admitted, prompt_rows
from sparkle.engine.plan import MAX_DRAFT_TOKENS, Drawn, PassPlan, PassResult
from sparkle.engine.request import Request, RequestState
from sparkle.engine.scheduler import Scheduler
from sparkle.schemas.priority import PriorityClass, target_s

P0, P1, P2, P3, P4 = PriorityClass


def request(
    name: str,
    prompt_tokens: int = 4,
    priority: PriorityClass = P1,
    *,
    arrival: int = 0,
    arrived_s: float = 0.0,
    deadline_s: float = math.inf,
    max_answer_tokens: int = 2,
) -> Request:
    made = Request(
        id=name,
        prompt=(7,) * prompt_tokens,
        max_answer_tokens=max_answer_tokens,
        stop_tokens=frozenset(),
        priority=priority,
        arrived_s=arrived_s,
        deadline_s=deadline_s,
    )
    made.arrival = arrival
    return made


def draw(plan: PassPlan) -> PassResult:
    return PassResult(drawn=tuple(Drawn(request=span.request, token=5) for span in plan.spans if span.draws))


def test_a_request_is_overdue_when_its_target_has_passed() -> None:
    late = request("a", priority=P1, arrived_s=10.0)
    assert not is_overdue(late, 13.999)
    assert is_overdue(late, 14.0)


def test_the_next_slot_is_the_shortest_class_then_the_shorter_prompt_then_the_first_come() -> None:
    waiting = [
        request("long answer", 1, P2, arrival=1),
        request("long prompt", 64, P1, arrival=2),
        request("equal, later", 32, P1, arrival=4),
        request("equal, earlier", 63, P1, arrival=3),
    ]
    order: list[str] = []
    while waiting:
        waiting.remove(first := next_admitted(waiting, 0.0))
        order.append(first.id)
    assert order == ["equal, earlier", "equal, later", "long prompt", "long answer"]


def test_the_overdue_one_that_came_first_gets_the_next_slot_before_any_shorter_one() -> None:
    long, longer = request("long", 9, P3, arrival=1), request("longer", 99, P3, arrival=2)
    short = request("short", 1, P0, arrival=3, arrived_s=64.0)
    assert next_admitted([longer, long, short], 63.9) is short
    assert next_admitted([longer, long, short], 64.0) is long
    # overdue itself, it still came later
    assert next_admitted([longer, short], 65.0) is longer


def test_the_prompt_with_the_least_unread_is_read_first() -> None:
    half_read, short = request("half read", 100, P3, arrival=1), request("short", 9, P0, arrival=2)
    half_read.computed = 95
    assert prompt_rows([half_read, short], 10, 0.0) == [(half_read, 5), (short, 5)]


def test_among_equals_the_earlier_deadline_goes_first() -> None:
    never, soon = request("never", 40, arrival=1), request("soon", 60, arrival=2, deadline_s=9.0)
    sooner, shorter = request("sooner", 63, arrival=3, deadline_s=5.0), request("shorter", 31, arrival=4)
    group = [never, soon, sooner, shorter]
    assert [one.id for one, _ in prompt_rows(group, 1_000, 0.0)] == ["shorter", "sooner", "soon", "never"]
    assert next_admitted(group[:3], 0.0) is sooner


def test_among_equals_without_a_deadline_tenants_take_turns() -> None:
    first, second, other = request("first", 40, arrival=1), request("second", 40, arrival=2), request("b", 40)
    second.round, other.arrival = 1, 3
    assert [one.id for one, _ in prompt_rows([first, second, other], 1_000, 0.0)] == ["first", "b", "second"]


def test_an_overdue_prompt_has_half_of_the_rows_and_what_nobody_else_wants() -> None:
    long, short = request("long", 100, P1, arrival=1), request("short", 30, P0, arrival=2, arrived_s=4.0)
    assert prompt_rows([long, short], 21, 3.9) == [(short, 21)]
    assert prompt_rows([long, short], 21, 4.0) == [(short, 10), (long, 11)]
    assert prompt_rows([long, short], 100, 4.0) == [(short, 30), (long, 70)]
    assert prompt_rows([long, short], 1, 4.0) == [(long, 1)]


prompts = st.lists(
    st.tuples(st.integers(1, 50), st.integers(0, 49), st.sampled_from(PriorityClass), st.floats(0.0, 300.0)),
    max_size=6,
)


@given(prompts, st.integers(0, 120), st.floats(0.0, 600.0))
def test_no_row_is_wasted_and_no_prompt_gets_more_than_it_has(
    given_prompts: list[tuple[int, int, PriorityClass, float]], rows: int, now_s: float
) -> None:
    reading: list[Request] = []
    for arrival, (tokens, computed, priority, arrived_s) in enumerate(given_prompts):
        reading.append(request(str(arrival), tokens, priority, arrival=arrival, arrived_s=arrived_s))
        reading[-1].computed = min(computed, tokens - 1)
    shared = prompt_rows(reading, rows, now_s)
    assert len({one.id for one, _ in shared}) == len(shared)
    assert all(0 < own <= one.unread_tokens for one, own in shared)
    assert sum(own for _, own in shared) == min(rows, sum(one.unread_tokens for one in reading))
    overdue = [one for one in reading if is_overdue(one, now_s)]
    if overdue and rows:
        own = dict(shared)[overdue[0]]
        assert own >= min(overdue[0].unread_tokens, (rows + 1) // 2)


arrivals = st.lists(
    st.tuples(st.integers(1, 90), st.integers(1, 6), st.sampled_from(PriorityClass)), max_size=4
)


@settings(max_examples=60, deadline=None)
@example(target=P1, hostile=[[(39, 1, P0), (39, 1, P0)]])
@given(target=st.sampled_from(PriorityClass), hostile=st.lists(arrivals, min_size=1, max_size=6))
def test_no_prompt_waits_more_than_four_times_its_target_whatever_arrives(
    target: PriorityClass, hostile: list[list[tuple[int, int, PriorityClass]]]
) -> None:
    """At the speed at which it would be read in just its target, were it alone."""
    planner = Scheduler(num_slots=4, num_pages=400, page_tokens=4, pass_tokens=40)
    victim = request("victim", 400, target)
    row_s = target_s(target) / len(victim.prompt)
    planner.add(victim)
    now_s, count = 0.0, 0
    for arriving in cycle(hostile):
        plan = planner.schedule(now_s)
        now_s += row_s * plan.num_tokens
        planner.apply(draw(plan))
        planner.check_integrity()
        if victim.state is not RequestState.READING:
            break
        for tokens, answer, priority in arriving:
            count += 1
            planner.add(request(str(count), tokens, priority, arrived_s=now_s, max_answer_tokens=answer))
    assert now_s <= 4 * target_s(target)


@settings(max_examples=30, deadline=None)
@given(
    passes=st.integers(1, 40),
    now_s=st.floats(0.0, 1000.0),
    decoding=st.integers(0, 28),
    documents=st.integers(0, 3),
    answer=st.integers(1, 60_000),
)
def test_a_question_is_read_in_the_very_next_pass_beside_a_document(
    passes: int, now_s: float, decoding: int, documents: int, answer: int
) -> None:
    """However long its answer may be, documents overdue or not, every running answer with a full draft."""
    planner = Scheduler(num_slots=33, num_pages=20_000, page_tokens=64, pass_tokens=4_096)
    for number in range(decoding):
        planner.add(request(f"running {number}", 4, P0, max_answer_tokens=10_000))
    planner.apply(draw(planner.schedule(0.0)))
    planner.add(request("document", 200_000, P3, max_answer_tokens=10_000))
    for number in range(documents):
        planner.add(request(f"document {number}", 33_000, P2, max_answer_tokens=10_000))
    for _ in range(passes):
        planner.apply(draw(planner.schedule(now_s)))
    planner.add(request("question", 300, P4, arrived_s=now_s, max_answer_tokens=answer))

    plan = planner.schedule(now_s, lambda rooms: {name: (9,) * room for name, room in rooms.items()})
    (span,) = (span for span in plan.spans if span.request == "question")
    assert (len(span.tokens), span.draws) == (300, True)
    # documents that are read meanwhile have drafts as well
    assert sum(len(one.draft) == MAX_DRAFT_TOKENS for one in plan.spans) >= decoding
