"""Few buckets are timed, and the others' times lie between."""

from __future__ import annotations

import pytest

from sparkle.engine.bucket_times import times_ms
from sparkle.engine.buckets import Bucket, graphs_for, widths_for


def test_the_ends_of_each_kind_are_timed_once_and_the_others_lie_on_a_line_between() -> None:
    took_ms = {
        Bucket(4, 1): 9.0,
        Bucket(1, 1): 8.0,
        Bucket(8, 16): 14.0,
        Bucket(8, 16, guesses=True): 16.0,
        Bucket(2, 16, guesses=True): 10.0,
    }
    timed: list[Bucket] = []

    def time_ms(bucket: Bucket) -> float:
        timed.append(bucket)
        return took_ms[bucket]

    found = times_ms([Bucket(2, 1), Bucket(4, 16, guesses=True), *took_ms, Bucket(3, 1)], time_ms)
    assert found == pytest.approx(
        {
            **took_ms,
            Bucket(2, 1): 8.0 + 1 / 3,
            Bucket(3, 1): 8.0 + 2 / 3,
            Bucket(4, 16, guesses=True): 12.0,
        }
    )
    assert sorted(timed, key=repr) == sorted(took_ms, key=repr)


def test_every_graph_has_a_time_though_few_are_timed() -> None:
    graphs = graphs_for(64, widths_for(15), guesses=True)
    timed: list[Bucket] = []

    def time_ms(bucket: Bucket) -> float:
        timed.append(bucket)
        return float(bucket.rows)

    found = times_ms(graphs, time_ms)
    assert found.keys() == {*graphs}
    # rows are on a line already
    assert all(ms == pytest.approx(bucket.rows) for bucket, ms in found.items())
    assert len(timed) <= 2 * len({(bucket.width, bucket.guesses) for bucket in graphs}) < len(graphs)
