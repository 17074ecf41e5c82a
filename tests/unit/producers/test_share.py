"""A tenant never has more jobs waiting than it may, and never fewer places than it gave back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkle.errors import QueueFull, TenantOverShare
from sparkle.producers.share import Share

MOST = 3
TENANTS = ("acme", "other")


@given(st.lists(st.tuples(st.sampled_from(TENANTS), st.integers(0, 9), st.booleans())))
def test_it_counts_as_a_set_of_jobs_would(steps: list[tuple[str, int, bool]]) -> None:
    share = Share(MOST)
    waiting: dict[str, set[str]] = {tenant: set() for tenant in TENANTS}
    for tenant, number, takes in steps:
        job = f"{tenant}-{number}"
        if not takes:
            share.give_back(job)
            waiting[tenant].discard(job)
        elif job in waiting[tenant]:
            continue
        elif len(waiting[tenant]) == MOST:
            with pytest.raises(TenantOverShare, match=f"tenant {tenant} has 3 jobs .* at most 3"):
                share.take(tenant, job)
        else:
            share.take(tenant, job)
            waiting[tenant].add(job)
        assert {name: share.waiting(name) for name in TENANTS} == {
            name: len(jobs) for name, jobs in waiting.items()
        }


def test_whoever_waits_for_a_full_queue_waits_for_this_as_well() -> None:
    assert issubclass(TenantOverShare, QueueFull)
    assert TenantOverShare.retryable
