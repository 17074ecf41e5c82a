"""What is timed: 32 answers with drafts in every pass, and 1,000 that wait and do not fit."""

from __future__ import annotations

import pytest

from bench.scheduler_pass import DRAFT, RUNNING, WAITING, busy_scheduler, drafts, run_pass
from sparkle.engine.plan import Drawn, PassResult


@pytest.mark.parametrize("num_slots", [RUNNING, 2 * RUNNING])
def test_as_many_run_and_wait_as_is_said(num_slots: int) -> None:
    scheduler = busy_scheduler(num_slots=num_slots)
    assert run_pass(scheduler) > 0
    plan = scheduler.schedule(0.0, drafts)
    assert [span.draft for span in plan.spans] == [DRAFT] * RUNNING
    scheduler.apply(PassResult(drawn=tuple(Drawn(request=span.request, token=5) for span in plan.spans)))
    assert scheduler.num_running == RUNNING
    ended = [number for number in range(RUNNING + WAITING) if scheduler.cancel(str(number))]
    assert len(ended) == RUNNING + WAITING
