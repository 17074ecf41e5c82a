"""Width control in simulated passes: at most 3 % slower than no drafts, and near the best fixed width."""

from __future__ import annotations

import pytest

from bench.draft_widths import MACHINES, WORKLOADS, Controlled, best_fixed, tokens_per_plain

PASSES = 500
NEVER_SLOWER = 0.97


@pytest.mark.parametrize("batch", [1, 5, 8, 32])
@pytest.mark.parametrize("machine", [name for name in MACHINES if name != "CPU"])
def test_on_an_h200(machine: str, batch: int) -> None:
    check(machine, batch)


@pytest.mark.parametrize("batch", [1, 8])
def test_on_a_cpu_that_is_held_up_and_was_not_measured(batch: int) -> None:
    check("CPU", batch)


def check(name: str, batch: int) -> None:
    machine = MACHINES[name]
    for workload, chance in WORKLOADS.items():
        ours = tokens_per_plain(machine, chance, batch, Controlled(machine), passes=PASSES)
        assert ours > NEVER_SLOWER, workload
        # where answers differ, a fixed width gains what learning which is which takes
        assert ours > 0.92 * best_fixed(machine, chance, batch, passes=PASSES), workload
