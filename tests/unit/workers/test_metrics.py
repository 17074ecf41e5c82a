"""What the worker counts of drafts."""

from __future__ import annotations

from sparkle.workers.metrics import WorkerMetrics


def test_drafts_are_counted_by_who_made_them() -> None:
    metrics = WorkerMetrics()
    metrics.answer_finished({"lookup": [2, 9, 5]})
    metrics.answer_finished({"lookup": [1, 4, 0], "mtp": [3, 9, 6]})
    metrics.answer_finished({})
    found = {
        (name, proposer): metrics.registry.get_sample_value(
            f"sparkle_draft_{name}_total", {"proposer": proposer}
        )
        for name in ("passes", "tokens", "tokens_accepted")
        for proposer in ("lookup", "mtp")
    }
    assert found == {
        ("passes", "lookup"): 3.0,
        ("tokens", "lookup"): 13.0,
        ("tokens_accepted", "lookup"): 5.0,
        ("passes", "mtp"): 3.0,
        ("tokens", "mtp"): 9.0,
        ("tokens_accepted", "mtp"): 6.0,
    }
