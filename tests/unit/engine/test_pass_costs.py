"""What passes take: as measured, then as they come; a pace that all share moves no choice."""

from __future__ import annotations

from random import Random

import pytest

from sparkle.engine.buckets import WIDTHS, Bucket, buckets_for
from sparkle.engine.pass_costs import FURTHEST, PassCosts

BUCKETS = buckets_for(8, WIDTHS)
TRUE_MS = {bucket: 8 + 0.5 * bucket.sequences + 0.3 * bucket.rows for bucket in BUCKETS}


def ratios(costs: PassCosts, sequences: int) -> list[float]:
    return [
        costs.ms(sequences, width, guesses=False) / costs.ms(sequences, 1, guesses=False)
        for width in costs.widths(sequences)
    ]


def true_ratios(sequences: int) -> list[float]:
    plain = TRUE_MS[Bucket(sequences, 1)]
    return [TRUE_MS[Bucket(sequences, width)] / plain for width in WIDTHS]


def test_what_was_measured_holds_for_all_that_fits_the_bucket() -> None:
    costs = PassCosts(BUCKETS, TRUE_MS)
    assert costs.ms(5, 3, guesses=False) == pytest.approx(TRUE_MS[Bucket(8, 4)])
    assert costs.ms(1, 1, guesses=False) == pytest.approx(TRUE_MS[Bucket(1, 1)])
    assert list(costs.widths(3)) == [1, 4, 8, 16]


def test_widths_are_those_with_a_bucket() -> None:
    costs = PassCosts(buckets_for(64, WIDTHS), {})
    assert [list(costs.widths(count)) for count in (1, 8, 9, 17, 33, 64)] == [
        [1, 4, 8, 16],
        [1, 4, 8, 16],
        [1, 4, 8],
        [1, 4],
        [1, 2],
        [1, 2],
    ]
    # more sequences than there are buckets for: no drafts, and a time all the same
    assert list(costs.widths(300)) == [1]
    assert costs.ms(300, 1, guesses=False) == costs.ms(64, 1, guesses=False)
    costs.took(300, 1, 5.0, guesses=False)


def test_passes_with_guesses_have_times_of_their_own() -> None:
    buckets = buckets_for(8, WIDTHS, guesses=True)
    costs = PassCosts(
        buckets,
        {bucket: TRUE_MS[Bucket(bucket.sequences, bucket.width)] + bucket.guesses for bucket in buckets},
    )
    assert costs.ms(3, 8, guesses=True) == pytest.approx(costs.ms(3, 8, guesses=False) + 1)
    assert list(costs.widths(3)) == [1, 4, 8, 16]
    before = costs.ms(3, 8, guesses=False) / costs.ms(3, 1, guesses=False)
    for _ in range(100):
        costs.took(3, 8, 100.0, guesses=True)
    assert costs.ms(3, 8, guesses=True) == pytest.approx(100, rel=0.05)
    assert costs.ms(3, 8, guesses=False) / costs.ms(3, 1, guesses=False) == pytest.approx(before)


def test_a_pace_that_changes_for_all_moves_no_ratio_much() -> None:
    costs = PassCosts(BUCKETS, TRUE_MS)
    for turn in range(300):
        # contexts grow, and only one width is run
        costs.took(8, 4, TRUE_MS[Bucket(8, 4)] * (1 + turn / 600), guesses=False)
    assert costs.ms(8, 4, guesses=False) == pytest.approx(TRUE_MS[Bucket(8, 4)] * 1.5, rel=0.02)
    assert ratios(costs, 8) == pytest.approx(true_ratios(8), rel=0.06)


def test_a_bucket_that_is_not_what_was_measured_is_learned() -> None:
    wrong = {**TRUE_MS, Bucket(8, 8): TRUE_MS[Bucket(8, 8)] * 0.7}
    costs = PassCosts(BUCKETS, wrong)
    for turn in range(400):
        width = 8 if turn % 4 == 0 else 1
        costs.took(8, width, TRUE_MS[Bucket(8, width)], guesses=False)
    assert ratios(costs, 8)[2] == pytest.approx(true_ratios(8)[2], rel=0.05)


@pytest.mark.parametrize("scale", [0.01, 1.0, 50.0])
def test_without_measurements_everything_is_learned(scale: float) -> None:
    costs = PassCosts(BUCKETS, {})
    random = Random(1)
    for _ in range(600):
        width = random.choice(WIDTHS)
        # one in twenty is held up, ten times as long as it takes
        held_up = 10 if random.random() < 0.05 else 1
        costs.took(
            4, width, scale * TRUE_MS[Bucket(4, width)] * random.uniform(0.9, 1.1) * held_up, guesses=False
        )
    assert ratios(costs, 4) == pytest.approx(true_ratios(4), rel=0.15)
    assert costs.ms(4, 1, guesses=False) == pytest.approx(scale * TRUE_MS[Bucket(4, 1)], rel=0.4)


def test_the_first_pass_sets_the_unit_and_later_ones_are_believed_only_so_far() -> None:
    costs = PassCosts(BUCKETS, {})
    costs.took(1, 1, 20.0, guesses=False)
    assert costs.ms(1, 1, guesses=False) == pytest.approx(20.0)
    costs.took(1, 1, 20_000.0, guesses=False)
    assert 20.0 < costs.ms(1, 1, guesses=False) <= 20.0 * 2.718**FURTHEST
