"""An account has each record once, in its month, whoever counts and however often."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkle.producers.metering.account import MONTHS_KEPT, Account, MonthUsage, Placed
from sparkle.producers.metering.months import day_of, month_of, next_month_ms
from tests.metering_rig import NOVEMBER_MS, job_id, usage_record

HOUR_MS = 3_600_000


def placed(count: int) -> list[Placed]:
    return [Placed(3 * number + 1, usage_record(job_id(number), number, 2)) for number in range(count)]


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12))))
def test_any_order_of_looks_counts_each_record_once(looks: list[tuple[int, int]]) -> None:
    records = placed(12)
    account = Account()
    for first, last in [*looks, (0, 12)]:
        # whoever counts has read from what is counted on, or from before it; never with a gap
        start = min(first, sum(one.seq <= account.through_seq for one in records))
        account = account.counting(records[start:last])
    assert account.months == {"2026-11": MonthUsage(jobs=12, prompt_tokens=66, completion_tokens=24)}
    assert account.through_seq == 34


def test_a_record_belongs_to_the_month_in_which_its_job_ended() -> None:
    ends = [NOVEMBER_MS, NOVEMBER_MS + HOUR_MS - 1, NOVEMBER_MS + HOUR_MS]
    records = [
        Placed(number + 1, usage_record(job_id(number), 10, cached_tokens=4, finished_ms=end))
        for number, end in enumerate(ends)
    ]
    account = Account().counting(records)
    assert account.months == {
        "2026-11": MonthUsage(jobs=2, prompt_tokens=20, cached_tokens=8),
        "2026-12": MonthUsage(jobs=1, prompt_tokens=10, cached_tokens=4),
    }
    assert account.spent(NOVEMBER_MS) == 20
    assert account.spent(NOVEMBER_MS + HOUR_MS) == 10


def test_what_is_no_record_is_passed_over() -> None:
    account = Account().counting([Placed(5, None)])
    assert account == Account(through_seq=5)


def test_old_months_leave() -> None:
    month_ms = 31 * 24 * HOUR_MS
    records = [
        Placed(number + 1, usage_record(job_id(number), 1, finished_ms=NOVEMBER_MS + number * month_ms))
        for number in range(MONTHS_KEPT + 4)
    ]
    months = Account().counting(records).months
    assert len(months) == MONTHS_KEPT
    assert max(months) == month_of(NOVEMBER_MS + (MONTHS_KEPT + 3) * month_ms)


def test_what_others_hold_is_not_left_until_it_expires() -> None:
    account = Account().holding("a", 30, expires_ms=NOVEMBER_MS + 10, now_ms=NOVEMBER_MS)
    account = account.holding("b", 5, expires_ms=NOVEMBER_MS + 20, now_ms=NOVEMBER_MS)
    assert account.left(100, gateway="b", now_ms=NOVEMBER_MS) == 70
    assert account.left(100, gateway="c", now_ms=NOVEMBER_MS) == 65
    assert account.left(100, gateway="c", now_ms=NOVEMBER_MS + 10) == 95
    gone = account.holding("b", 0, expires_ms=0, now_ms=NOVEMBER_MS + 10)
    assert gone.holds == {}


@pytest.mark.parametrize(
    ("moment", "month", "resets"),
    [
        (NOVEMBER_MS, "2026-11", "2026-12-01"),
        (NOVEMBER_MS + HOUR_MS, "2026-12", "2027-01-01"),
        (0, "1970-01", "1970-02-01"),
    ],
)
def test_months_are_of_utc(moment: int, month: str, resets: str) -> None:
    assert month_of(moment) == month
    assert day_of(next_month_ms(moment)) == resets
