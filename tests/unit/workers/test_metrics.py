"""What the worker counts of drafts and of what the engine keeps."""

from __future__ import annotations

from sparkle.engine.frames import Cached
from sparkle.workers.metrics import WorkerMetrics


def test_drafts_are_counted_by_who_made_them() -> None:
    metrics = WorkerMetrics()
    metrics.answer_finished({"lookup": [2, 9, 5]}, cached_tokens=0)
    metrics.answer_finished({"lookup": [1, 4, 0], "mtp": [3, 9, 6]}, cached_tokens=64)
    metrics.answer_finished({}, cached_tokens=128)
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
    assert metrics.registry.get_sample_value("sparkle_cache_hits_total") == 2.0


def test_what_the_engine_keeps_is_told_as_it_says() -> None:
    metrics = WorkerMetrics()
    for checkpoints, evicted, preempted in ((3, 0, 1), (2, 5, 7)):
        metrics.cached(Cached(checkpoints=checkpoints, evicted=evicted, preempted=preempted))
    names = ("cache_checkpoints", "cache_evictions", "preemptions")
    found = [metrics.registry.get_sample_value(f"sparkle_{name}") for name in names]
    assert found == [2.0, 5.0, 7.0]
