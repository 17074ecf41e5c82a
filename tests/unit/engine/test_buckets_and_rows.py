"""Shapes of captured passes, and the rows that spans become."""

from __future__ import annotations

import pytest

from sparkle.engine.buckets import MAX_ROWS, Bucket, buckets_for, smallest
from sparkle.engine.plan import Span
from sparkle.engine.rows import pieces_of, rows_of


def test_buckets_of_one_width_are_powers_of_two_and_all_slots() -> None:
    assert [bucket.sequences for bucket in buckets_for(64, (1,))] == [64, 32, 16, 8, 4, 2, 1]
    assert [bucket.sequences for bucket in buckets_for(12, (1,))] == [12, 8, 4, 2, 1]
    assert [bucket.sequences for bucket in buckets_for(1, (1,))] == [1]
    assert buckets_for(128, (1,))[0] == Bucket(128, 1)


def test_no_bucket_has_too_many_rows_and_the_largest_come_first() -> None:
    made = buckets_for(64, (1, 4, 8, 16))
    rows = [bucket.rows for bucket in made]
    assert rows == sorted(rows, reverse=True)
    assert rows[0] == MAX_ROWS
    assert len(set(made)) == len(made)
    assert {bucket.sequences for bucket in made if bucket.width == 16} == {1, 2, 4, 8}
    assert {bucket.sequences for bucket in made if bucket.width == 4} == {1, 2, 4, 8, 16, 32}


@pytest.mark.parametrize(
    ("sequences", "width", "bucket"),
    [
        (1, 1, Bucket(1, 1)),
        (3, 1, Bucket(4, 1)),
        (1, 2, Bucket(1, 4)),
        (3, 5, Bucket(4, 8)),
        (8, 16, Bucket(8, 16)),
        (9, 16, None),
        (1, 17, None),
        (64, 1, Bucket(64, 1)),
        (33, 2, None),
        (65, 1, None),
    ],
)
def test_the_smallest_with_room(sequences: int, width: int, bucket: Bucket | None) -> None:
    assert smallest(buckets_for(64, (1, 4, 8, 16)), sequences=sequences, width=width) == bucket


def span(slot: int, start: int, tokens: tuple[int, ...], pages: tuple[int, ...]) -> Span:
    return Span(request="a", slot=slot, start=start, tokens=tokens, pages=pages, draws=True, fresh=False)


def test_rows_of_two_spans() -> None:
    rows = rows_of([span(3, 2, (10, 11, 12), (5, 6)), span(1, 7, (20,), (9, 2))], page_tokens=4)
    assert rows.token_ids == [10, 11, 12, 20]
    assert rows.positions == [2, 3, 4, 7]
    assert rows.cells == [22, 23, 24, 11]
    assert rows.span_starts == [0, 3, 4]
    assert rows.slots == [3, 1]
    assert rows.contexts == [2, 7]


def test_a_span_beyond_its_pages_is_a_fault() -> None:
    with pytest.raises(IndexError):
        rows_of([span(0, 3, (1, 2), (5,))], page_tokens=4)


def test_pieces_are_as_wide_as_they_may_be_and_end_with_their_span() -> None:
    rows = rows_of([span(3, 2, tuple(range(5)), (5, 6)), span(1, 7, (20,), (9, 2))], page_tokens=4)
    pieces = pieces_of(rows, width=2)
    assert pieces.starts == [0, 2, 4, 5, 6]
    assert pieces.contexts == [2, 4, 6, 7]
    assert pieces.slots == [3, 3, 3, 1]
