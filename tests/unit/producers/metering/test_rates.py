"""A tenant goes as fast as its limits say, and no slower."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkle.errors import AccessError, RateLimited
from sparkle.producers.metering.rates import Bucket, Rates
from sparkle.producers.metering.tenant import Limits


@given(st.integers(1, 100), st.lists(st.tuples(st.floats(0, 30), st.integers(1, 30)), max_size=25))
def test_no_minute_lets_more_pass_than_its_worth_and_what_was_saved_up(
    per_minute: int, asks: list[tuple[float, int]]
) -> None:
    bucket, now_s, passed = Bucket(per_minute), 0.0, list[tuple[float, int]]()
    for pause_s, amount in asks:
        now_s += pause_s
        wait_s = bucket.wait_s(amount, now_s)
        if wait_s == 0:
            bucket.take(amount)
            passed.append((now_s, amount))
        else:
            # it was told the truth: then, and no sooner, it may go
            assert bucket.wait_s(amount, now_s + wait_s + 1e-6) == 0
            now_s += wait_s + 1e-6
    for start_s, _ in passed:
        within = [amount for at_s, amount in passed if start_s <= at_s < start_s + 60.0]
        assert sum(within) <= 2 * per_minute + max(within)


def test_more_jobs_than_may_ever_run_are_not_told_to_come_again() -> None:
    rates = Rates(Limits(requests_per_minute=3, max_running=2))
    jobs = {"a": 1, "b": 1, "c": 1}
    with pytest.raises(AccessError, match="is 3 jobs and at most 2 of this tenant may run") as no:
        rates.start(jobs, num_running=0, now_s=0.0)
    assert not no.value.retryable
    # and cost nothing
    rates.start({"a": 1, "b": 1}, num_running=0, now_s=0.0)
    rates.start({"c": 1}, num_running=0, now_s=0.0)


def test_each_limit_says_what_it_is_and_when_to_come_again() -> None:
    rates = Rates(Limits(requests_per_minute=2, max_running=3))
    rates.start({"a": 100, "b": 100}, num_running=0, now_s=0.0)
    with pytest.raises(RateLimited, match="at most 2 requests may begin in a minute") as no:
        rates.start({"c": 1}, num_running=2, now_s=0.0)
    assert no.value.retry_after_s == 30.0
    with pytest.raises(RateLimited, match="2 jobs are running and at most 3 may"):
        rates.start({"c": 1, "d": 1}, num_running=2, now_s=60.0)
    tokens = Rates(Limits(tokens_per_minute=600))
    tokens.start({"a": 200}, num_running=0, now_s=0.0)
    with pytest.raises(RateLimited, match=r"at most 600 tokens .* try again in 15\.0 s"):
        tokens.start({"b": 600}, num_running=0, now_s=5.0)


def test_what_a_job_did_not_use_may_be_used_by_others() -> None:
    rates = Rates(Limits(tokens_per_minute=100))
    rates.start({"a": 100}, num_running=0, now_s=0.0)
    rates.recorded(100, 30)
    rates.start({"b": 70}, num_running=0, now_s=0.0)
    with pytest.raises(RateLimited):
        rates.start({"c": 1}, num_running=0, now_s=0.0)


def test_a_job_of_more_than_a_minutes_worth_has_to_wait_for_a_full_one() -> None:
    rates = Rates(Limits(tokens_per_minute=100))
    rates.start({"a": 250}, num_running=0, now_s=0.0)
    with pytest.raises(RateLimited) as no:
        rates.start({"b": 1}, num_running=0, now_s=0.0)
    assert no.value.retry_after_s == pytest.approx(151 * 0.6)


def test_a_refused_start_takes_nothing() -> None:
    rates = Rates(Limits(requests_per_minute=2, tokens_per_minute=10))
    rates.start({"a": 10}, num_running=0, now_s=0.0)
    with pytest.raises(RateLimited):
        rates.start({"b": 1}, num_running=0, now_s=0.0)
    rates.refused({"a": 10})
    rates.start({"b": 5}, num_running=0, now_s=0.0)
    rates.start({"c": 5}, num_running=0, now_s=0.0)


def test_without_limits_all_pass() -> None:
    rates = Rates(Limits())
    for number in range(1000):
        rates.start({"a": 10**9}, num_running=number, now_s=0.0)
