"""Who gives way to a shorter class, and that it goes on with its own tokens."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkle.engine.preemption import MOST_PREEMPTIONS, giving_way
from sparkle.engine.request import Request, RequestState
from sparkle.schemas.priority import PriorityClass
from tests.engine.cache_rig import CACHE_S, STOP, Rig, document, request

P0, P1, P2, P3, P4 = PriorityClass
LONG = document(0, 45)


def running(
    name: str, priority: PriorityClass, *, arrival: int, written: int = 1, most: int = 100, pages: int = 3
) -> Request:
    made = request(name, (7, 7), most=most, priority=priority)
    made.arrival, made.answer = arrival, [5] * written
    made.pages = tuple(range(100 * arrival, 100 * arrival + pages))
    made.move_to(RequestState.READING)
    made.move_to(RequestState.DECODING)
    return made


def waits(priority: PriorityClass = P0, *, arrived_s: float = 0.0) -> Request:
    return request("waits", (7,), priority=priority, arrived_s=arrived_s)


def alone(_page: int) -> int:
    """Nobody shares a page."""
    return 1


def names(of: list[Request]) -> list[str]:
    return [one.id for one in of]


def test_the_longest_class_gives_way_first_and_of_it_who_came_last() -> None:
    some = [
        running("p2", P2, arrival=9),
        running("p4, first", P4, arrival=1),
        running("p4, last", P4, arrival=5),
        running("p3", P3, arrival=7),
    ]
    assert names(giving_way(some, waits(), 1, alone, 1.0)) == ["p4, last"]
    assert names(giving_way(some, waits(), 3, alone, 1.0)) == ["p4, last"]
    assert names(giving_way(some, waits(), 4, alone, 1.0)) == ["p4, last", "p4, first"]
    assert names(giving_way(some, waits(), 12, alone, 1.0)) == ["p4, last", "p4, first", "p3", "p2"]
    # all of them are not enough: nobody does in vain
    assert giving_way(some, waits(), 13, alone, 1.0) == []


@pytest.mark.parametrize(
    ("to", "count"), [(P0, 4), (P1, 4), (P2, 3), (P3, 1), (P4, 0)], ids=[*map(str, PriorityClass)]
)
def test_never_to_its_own_class_or_a_longer_one(to: PriorityClass, count: int) -> None:
    some = [running(str(number), of, arrival=number) for number, of in enumerate([P2, P3, P3, P4])]
    assert len(giving_way(some, waits(to), 3 * count or 1, alone, 100.0)) == count


def test_only_to_one_that_has_waited_a_quarter_of_its_target() -> None:
    some = [running("a", P4, arrival=1)]
    assert giving_way(some, waits(P1, arrived_s=10.0), 1, alone, 10.9) == []
    assert names(giving_way(some, waits(P1, arrived_s=10.0), 1, alone, 11.0)) == ["a"]


def test_not_who_is_nearly_done_or_has_given_way_twice() -> None:
    nearly = running("nearly", P4, arrival=1, written=36)
    often = running("often", P4, arrival=2)
    often.preemptions = MOST_PREEMPTIONS
    assert giving_way([nearly, often], waits(), 1, alone, 1.0) == []
    nearly.answer.pop()
    often.preemptions -= 1
    assert names(giving_way([nearly, often], waits(), 6, alone, 1.0)) == ["often", "nearly"]


def test_not_the_overdue_one_that_is_read() -> None:
    overdue, also = (request(name, LONG, most=100, priority=P2) for name in ("overdue", "also"))
    for arrival, one in enumerate((overdue, also)):
        one.arrival, one.pages = arrival, (arrival,)
        one.move_to(RequestState.READING)
    assert names(giving_way([overdue, also], waits(arrived_s=14.0), 2, alone, 15.9)) == ["also", "overdue"]
    assert giving_way([overdue, also], waits(arrived_s=14.0), 2, alone, 16.0) == []
    assert names(giving_way([overdue, also], waits(arrived_s=14.0), 1, alone, 16.0)) == ["also"]


def full(*, cached_slots: int = 2, cache_s: float = CACHE_S, num_pages: int = 200) -> tuple[Rig, Request]:
    """A slot, and a long answer in it of which five tokens are written."""
    rig = Rig(num_slots=1, cached_slots=cached_slots, cache_s=cache_s, num_pages=num_pages)
    long = rig.add(request("long", LONG, most=100, priority=P3))
    while len(long.answer) < 5:
        rig.run_pass()
    return rig, long


@pytest.mark.parametrize(
    ("cached_slots", "cache_s", "kept"),
    [(2, CACHE_S, True), (1, CACHE_S, True), (2, 0.0, False), (0, CACHE_S, False)],
)
def test_it_goes_on_from_its_checkpoint_or_reads_all_again(
    cached_slots: int, cache_s: float, *, kept: bool
) -> None:
    rig, long = full(cached_slots=cached_slots, cache_s=cache_s)
    short = rig.add(request("short", (7, 8), most=2, priority=P0, arrived_s=rig.now_s))
    plan = rig.run_pass()
    assert [span.request for span in plan.spans] == ["long"], "it is not due yet"
    rig.now_s += 0.25
    plan = rig.run_pass()
    assert [(span.request, span.tokens) for span in plan.spans] == [("short", (7, 8))]
    assert (long.state, long.slot, long.pages) == (RequestState.WAITING, None, ())
    rig.run_pass()
    assert short.state is RequestState.ENDED
    plan = rig.run_pass()
    # 45 and the six that are written: the last one is read in any case
    (span,) = plan.spans
    assert (span.request, span.start, span.fresh) == ("long", 50 if kept else 0, True)
    while len(long.answer) < 7:
        rig.run_pass()
    rig.run(token=STOP)
    assert long.answer == [5] * 7 + [STOP]


def test_for_a_slot_one_gives_way_however_few_pages_it_has_where_others_are_free() -> None:
    rig = Rig(num_slots=2, num_pages=200)
    # 37 pages each
    first, second = (rig.add(request(name, LONG, most=100, priority=P3)) for name in ("first", "second"))
    rig.run_pass()
    # 75 pages
    big = rig.add(request("big", document(1, 200), most=100, priority=P0, arrived_s=-1.0))
    rig.run_pass()
    assert (big.state, first.preemptions, second.preemptions) == (RequestState.READING, 0, 1)
    rig.run(token=STOP)


@pytest.mark.parametrize(
    ("pages", "is_kept", "leave"),
    [
        *((26, False, 0), (27, False, 1), (63, False, 1), (64, False, 2), (100, False, 2)),
        *((26, True, 1), (37, True, 1), (38, True, 2), (74, True, 2), (75, True, 0)),
    ],
)
def test_for_pages_as_many_give_way_as_are_needed_and_none_in_vain(
    pages: int, leave: int, *, is_kept: bool
) -> None:
    """26 pages are nobody's; where `is_kept`, they wait for one that is overdue."""
    rig = Rig(num_slots=4, num_pages=100)
    # 37 pages each
    first, second = (rig.add(request(name, LONG, most=100, priority=P3)) for name in ("first", "second"))
    rig.run_pass()
    if is_kept:
        rig.add(request("overdue", document(1, 100), most=300, priority=P2, arrived_s=-16.0))
    short = rig.add(request("short", (7, 8), most=4 * pages - 2, priority=P0, arrived_s=-0.5))
    rig.run_pass()
    assert first.preemptions + second.preemptions == leave
    begins = leave > 0 or (pages <= 26 and not is_kept)
    assert (short.state is not RequestState.WAITING) == begins
    rig.planner.cancel("overdue")
    rig.run(token=STOP)


@pytest.mark.parametrize(("most", "leave"), [(110, 1), (114, 2), (258, 2), (262, 0)])
def test_nobody_gives_way_for_pages_that_others_hold_as_well(most: int, leave: int) -> None:
    rig = Rig(num_slots=4, num_pages=76)
    # 11 pages, and nearly done
    rig.add(request("nearly", (7, 8), most=40, priority=P3))
    # 37 pages each, of which the second one goes on from nine of the first
    first = rig.add(request("first", LONG, most=100, priority=P3))
    rig.run_pass()
    rig.run_pass()
    second = rig.add(request("second", LONG, most=100, priority=P3))
    rig.run_pass()
    assert len({*first.pages, *second.pages}) == 65
    short = rig.add(request("short", (7, 8), most=most, priority=P0, arrived_s=-1.0))
    rig.run_pass()
    assert first.preemptions + second.preemptions == leave
    assert short.state is (RequestState.DECODING if leave else RequestState.WAITING)


def test_one_that_gave_way_is_next_before_others_of_its_class_and_gives_way_no_more_than_twice() -> None:
    rig, long = full()
    for number in range(MOST_PREEMPTIONS + 1):
        rig.add(request(f"other {number}", LONG, most=100, priority=P3, arrived_s=rig.now_s))
        rig.add(request(f"short {number}", (7, 8), most=1, priority=P0, arrived_s=rig.now_s - 1.0))
        (span,) = rig.run_pass().spans
        expected = f"short {number}" if number < MOST_PREEMPTIONS else "long"
        assert span.request == expected
        (span,) = rig.run_pass().spans
        assert span.request == "long"
    assert long.preemptions == MOST_PREEMPTIONS


jobs = st.tuples(
    st.sampled_from([P0, P1, P3, P4]), st.integers(0, 1), st.integers(1, 50), st.sampled_from([2, 7, 90])
)


@settings(max_examples=150, deadline=None)
@given(
    num_slots=st.integers(1, 3),
    cached_slots=st.integers(0, 3),
    page_tokens=st.integers(1, 4),
    num_pages=st.integers(80, 300),
    pass_tokens=st.sampled_from([6, 30, 100]),
    cache_s=st.sampled_from([0.0, CACHE_S]),
    arriving=st.lists(st.lists(jobs, max_size=2), min_size=5, max_size=25),
    width=st.integers(0, 5),
    right=st.integers(0, 5),
)
def test_every_answer_is_written_once_whoever_gives_way(
    num_slots: int,
    cached_slots: int,
    page_tokens: int,
    num_pages: int,
    pass_tokens: int,
    cache_s: float,
    arriving: list[list[tuple[PriorityClass, int, int, int]]],
    width: int,
    right: int,
) -> None:
    """The rig's memory checks that each request reads its own tokens, and that nothing is left behind."""
    rig = Rig(
        num_slots=num_slots,
        cached_slots=cached_slots,
        page_tokens=page_tokens,
        num_pages=num_pages,
        pass_tokens=pass_tokens,
        cache_s=cache_s,
    )
    # the longest first, so that there is somebody to give way
    arriving = [[(P4, 0, 20, 90)] * num_slots, *arriving]
    passes = 0
    while arriving or rig.planner.has_work:
        for priority, kind, length, most in arriving.pop(0) if arriving else ():
            prompt = document(kind, length)
            one = request(str(len(rig.requests)), prompt, most=most, priority=priority, arrived_s=rig.now_s)
            if one.worst_case_tokens <= num_pages * page_tokens:
                rig.add(one)
        given_way = rig.planner.preempted
        waiting = {one for one in rig.requests.values() if one.state is RequestState.WAITING}
        plan = rig.schedule(dict.fromkeys(rig.requests, (5,) * width))
        # nobody does in vain
        assert rig.planner.preempted == given_way or any(one.slot is not None for one in waiting)
        drawn = {span.request: (5,) * (1 + min(right, len(span.draft))) for span in plan.spans}
        rig.finish_pass(plan, drawn)
        rig.now_s += 0.3
        passes += 1
        assert passes < 20_000
    assert all(one.answer == [5] * one.max_answer_tokens for one in rig.requests.values())
    assert all(one.preemptions <= MOST_PREEMPTIONS for one in rig.requests.values())
    rig.now_s += CACHE_S
    rig.run_pass()
    rig.check_all_is_blank()


@settings(max_examples=60, deadline=None)
@given(
    num_slots=st.integers(1, 4),
    written=st.integers(0, 30),
    priority=st.sampled_from([P0, P1, P2]),
    longer=st.lists(st.sampled_from([P3, P4]), min_size=4, max_size=4),
    pass_s=st.floats(0.01, 0.2),
)
def test_a_shorter_class_waits_a_quarter_of_its_target_and_a_pass_where_longer_ones_hold_all_slots(
    num_slots: int, written: int, priority: PriorityClass, longer: list[PriorityClass], pass_s: float
) -> None:
    rig = Rig(num_slots=num_slots)
    for number in range(num_slots):
        rig.add(request(f"long {number}", document(0, 20), most=100, priority=longer[number]))
    for _ in range(written + 1):
        rig.run_pass()
        rig.now_s += pass_s
    short = rig.add(request("short", (7, 8), priority=priority, arrived_s=rig.now_s))
    while not short.answer:
        rig.run_pass()
        rig.now_s += pass_s
        if max(len(one.answer) for one in rig.requests.values()) >= 36:
            # nearly done: it waits for the end
            return
    wait_s = rig.now_s - short.arrived_s
    assert wait_s <= 0.25 * 4.0 ** int(priority[1:]) + 2 * pass_s + 1e-9
