"""Shapes of captured passes, and the rows that spans become."""

from __future__ import annotations

import pytest

from sparkle.engine.buckets import MAX_ROWS, Bucket, buckets_for, graphs_for, smallest
from sparkle.engine.plan import Span
from sparkle.engine.rows import following_rows, kept_rows, pieces_of, rows_of


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
    # where a draft of three does not fit, one of a single token does
    assert {bucket.sequences for bucket in made if bucket.width == 2} == {64}
    assert {bucket.sequences for bucket in buckets_for(128, (1, 4)) if bucket.width == 2} == {64}
    pairs = [bucket for bucket in buckets_for(48, (1, 8), guesses=True) if bucket.width == 2]
    assert pairs == [Bucket(count, 2, guesses) for count in (48, 32) for guesses in (False, True)]


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
        (33, 2, Bucket(64, 2)),
        (33, 3, None),
        (9, 2, Bucket(16, 4)),
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


def test_with_a_draft_model_each_width_with_room_for_guesses_is_there_twice() -> None:
    plain, twice = buckets_for(8, (1, 4, 16)), buckets_for(8, (1, 4, 16), guesses=True)
    assert [bucket for bucket in twice if not bucket.guesses] == list(plain)
    assert {(bucket.sequences, bucket.width) for bucket in twice if bucket.guesses} == {
        (bucket.sequences, bucket.width) for bucket in plain if bucket.width > 1
    }
    assert smallest(twice, sequences=3, width=2, guesses=True) == Bucket(4, 4, guesses=True)
    assert smallest(twice, sequences=3, width=2) == Bucket(4, 4)
    assert smallest(plain, sequences=3, width=2, guesses=True) is None


def test_what_follows_each_row_and_what_stays_of_each_span() -> None:
    def one(
        request: str, tokens: tuple[int, ...], *, draws: bool, draft: int = 0, following: int | None = None
    ) -> Span:
        return Span(
            request=request,
            slot=0,
            start=5,
            tokens=tokens,
            pages=(0, 1, 2),
            draws=draws,
            fresh=False,
            draft=tokens[len(tokens) - draft :],
            following=following,
        )

    spans = [
        one("read on", (1, 2, 3), draws=False, following=4),
        one("ends", (5, 6), draws=True),
        one("drafts", (7, 8, 9), draws=True, draft=2),
        one("agrees", (10, 11), draws=True, draft=1),
        one("broken", (12, 13), draws=True, draft=1),
        one("test", (14,), draws=False),
    ]
    drawn = {"ends": [60], "drafts": [8, 70], "agrees": [11, 80]}
    assert following_rows(spans, drawn) == [2, 3, 4, 6, 60, 8, 70, -1, 11, 80, -1, -1, -1]
    assert following_rows(spans, {}) == [2, 3, 4, 6, -1, -1, -1, -1, -1, -1, -1, -1, -1]
    assert kept_rows(spans, drawn) == [3, 2, 2, 2, 0, 1]


def test_beside_a_draft_model_copies_have_the_widest_graphs_alone() -> None:
    every = buckets_for(64, (1, 4, 8, 16), guesses=True)
    made = graphs_for(64, (1, 4, 8, 16), guesses=True)
    assert [bucket for bucket in made if bucket.guesses] == [bucket for bucket in every if bucket.guesses]
    copies = [(bucket.sequences, bucket.width) for bucket in made if bucket.width > 1 and not bucket.guesses]
    assert sorted(copies) == [(1, 16), (2, 16), (4, 16), (8, 16), (16, 8), (32, 4), (64, 2)]
    assert sum(bucket.width == 1 for bucket in made) == 7
    # whatever fits a bucket has a graph
    for bucket in every:
        assert smallest(made, sequences=bucket.sequences, width=bucket.width, guesses=bucket.guesses)
    assert graphs_for(64, (1, 4, 8, 16)) == buckets_for(64, (1, 4, 8, 16))
