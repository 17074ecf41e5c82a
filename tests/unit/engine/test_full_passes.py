"""The shortest full pass is believed once enough were seen, and no other pass counts."""

from __future__ import annotations

from sparkle.engine.full_passes import SEEN_PASSES, FullPasses


def test_the_shortest_of_enough_full_passes() -> None:
    passes = FullPasses(100)
    for took_s in [5.0, 3.0, 4.0, 6.0][: SEEN_PASSES - 1]:
        passes.passed(100, took_s)
        passes.passed(99, 0.1)
        assert passes.shortest_s == 0.0
    passes.passed(100, 7.0)
    assert passes.shortest_s == 3.0
    passes.passed(1, 0.1)
    assert passes.shortest_s == 3.0
    passes.passed(100, 2.0)
    assert passes.shortest_s == 2.0
