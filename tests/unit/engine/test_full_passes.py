"""The shortest full pass is believed once enough were seen, and no other pass counts."""

from __future__ import annotations

from sparkle.engine.full_passes import SEEN_PASSES, FullPasses
from tests.unit.reading_passes import reading


def test_the_shortest_of_enough_full_passes() -> None:
    passes = FullPasses(100)
    for took_s in [5.0, 3.0, 4.0, 6.0][: SEEN_PASSES - 1]:
        passes.passed(reading((0, 100)), took_s)
        passes.passed(reading((0, 99)), 0.1)
        assert passes.shortest_s == 0.0
    passes.passed(reading((0, 60), (0, 40)), 7.0)
    assert passes.shortest_s == 3.0
    passes.passed(reading((0, 1)), 0.1)
    assert passes.shortest_s == 3.0
    passes.passed(reading((0, 100)), 2.0)
    assert passes.shortest_s == 2.0


def test_full_passes_deep_in_a_prompt_say_nothing_of_one_that_begins() -> None:
    passes = FullPasses(100)
    for _ in range(2 * SEEN_PASSES):
        passes.passed(reading((100, 100)), 9.0)
        passes.passed(reading((0, 50), (50, 50)), 9.0)
    assert passes.shortest_s == 0.0
