"""Unix time goes on by the steady clock alone, however the machine's is set."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkle.clock import SteadyUnixClock, since_boot_s


class Machine:
    """A machine whose clock can be set."""

    def __init__(self) -> None:
        self.unix = 1_800_000_000.0
        self.steady = 50.0

    def pass_by(self, seconds: float) -> None:
        self.unix += seconds
        self.steady += seconds


STEPS = st.lists(st.tuples(st.floats(0, 1e6), st.floats(-1e9, 1e9)), max_size=8)


@given(STEPS)
def test_steps_of_the_machines_clock_are_not_seen(steps: list[tuple[float, float]]) -> None:
    machine = Machine()
    clock = SteadyUnixClock(lambda: machine.unix, lambda: machine.steady)
    passed_s = 0.0
    for seconds, step in steps:
        machine.pass_by(seconds)
        machine.unix += step
        passed_s += seconds
        assert clock() == pytest.approx(1_800_000_000.0 + passed_s, abs=1e-3)


def test_it_begins_with_the_machines_own_time() -> None:
    before, now, after = time.time(), SteadyUnixClock()(), time.time()
    assert before - 1e-3 <= now <= after + 1e-3


def test_without_a_clock_that_counts_sleep_the_monotonic_one_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(time, "CLOCK_BOOTTIME", raising=False)
    before = time.monotonic()
    assert before <= since_boot_s() <= time.monotonic()
