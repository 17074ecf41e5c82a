"""What may be spent over time, whoever asks and however often."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sparkle.queue.allowance import Allowance


@given(st.lists(st.tuples(st.floats(0, 2), st.integers(0, 500)), max_size=50))
def test_never_more_than_the_rate_a_burst_and_one_request(asked: list[tuple[float, int]]) -> None:
    allowance, now_s, spent, largest = Allowance(100.0, now_s=0.0), 0.0, 0, 0
    for pause_s, units in asked:
        now_s += pause_s
        if allowance.is_left(now_s):
            allowance.spend(units)
            spent, largest = spent + units, max(largest, units)
    assert spent <= 100.0 * (now_s + 1.0) + largest + 1e-6


def test_what_was_spent_comes_back_with_time() -> None:
    allowance = Allowance(10.0, now_s=5.0)
    allowance.spend(30)
    assert not allowance.is_left(6.9)
    assert allowance.is_left(7.1)


def test_unused_time_gives_no_more_than_a_second() -> None:
    allowance = Allowance(10.0, now_s=0.0)
    assert allowance.is_left(1000.0)
    allowance.spend(11)
    assert not allowance.is_left(1000.0)
