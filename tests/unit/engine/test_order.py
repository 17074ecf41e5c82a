"""Who goes first: the overdue one that came first, then the shortest."""

from __future__ import annotations

from sparkle.engine.order import by_unread, by_work, first_overdue, is_overdue
from sparkle.schemas.priority import PriorityClass
from tests.unit.engine.made_requests import request

P0, P1, P2, P3, _ = PriorityClass


def test_a_request_is_overdue_when_its_target_has_passed() -> None:
    late = request("a", priority=P1, arrived_s=10.0)
    assert not is_overdue(late, 13.999)
    assert is_overdue(late, 14.0)


def test_the_shortest_class_goes_first_then_the_shorter_prompt_then_the_first_come() -> None:
    waiting = [
        request("long answer", 1, P2, arrival=1),
        request("long prompt", 64, P1, arrival=2),
        request("equal, later", 32, P1, arrival=4),
        request("equal, earlier", 63, P1, arrival=3),
    ]
    order = [one.id for one in sorted(waiting, key=by_work)]
    assert order == ["equal, earlier", "equal, later", "long prompt", "long answer"]


def test_of_the_overdue_the_one_that_came_first_is_first() -> None:
    long, longer = request("long", 9, P3, arrival=1), request("longer", 99, P3, arrival=2)
    short = request("short", 1, P0, arrival=3, arrived_s=64.0)
    assert first_overdue([longer, long, short], 63.9) is None
    assert first_overdue([longer, long, short], 64.0) is long
    # overdue itself, it still came later
    assert first_overdue([longer, short], 65.0) is longer


def test_the_prompt_with_the_least_unread_is_read_first() -> None:
    half_read, short = request("half read", 100, P3, arrival=1), request("short", 9, P0, arrival=2)
    half_read.computed = 95
    assert sorted([short, half_read], key=by_unread) == [half_read, short]


def test_among_equals_the_earlier_deadline_goes_first() -> None:
    never, soon = request("never", 40, arrival=1), request("soon", 60, arrival=2, deadline_s=9.0)
    sooner, shorter = request("sooner", 63, arrival=3, deadline_s=5.0), request("shorter", 31, arrival=4)
    group = [never, soon, sooner, shorter]
    assert [one.id for one in sorted(group, key=by_unread)] == ["shorter", "sooner", "soon", "never"]
    assert sorted(group[:3], key=by_work)[0] is sooner


def test_among_equals_without_a_deadline_tenants_take_turns() -> None:
    first, second, other = request("first", 40, arrival=1), request("second", 40, arrival=2), request("b", 40)
    second.round, other.arrival = 1, 3
    assert [one.id for one in sorted([first, second, other], key=by_unread)] == ["first", "b", "second"]
