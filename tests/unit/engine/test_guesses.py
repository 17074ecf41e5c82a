"""Guesses on the device: where they go among the rows of a pass."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from sparkle.engine.buckets import Bucket
from sparkle.engine.guesses import token_sources, with_guesses


def filled(token_ids: Sequence[int], guesses: Sequence[Sequence[int]], starts: Sequence[int]) -> list[int]:
    bucket = Bucket(len(guesses), 1 + len(guesses[0]), guesses=True)
    rows = [*token_ids, *[0] * (bucket.rows - len(token_ids))]
    sources = torch.tensor(token_sources(token_ids, starts, bucket))
    found = with_guesses(torch.tensor(rows), torch.tensor(guesses), sources, vocab_size=100)
    return [int(token) for token in found]


def test_guesses_stand_behind_the_first_rows_of_their_spans() -> None:
    guesses = [[10, 11, 12], [20, 21, 22], [30, 31, 32]]
    # a whole draft, tokens that are known, and two guesses of three; three rows are unused
    token_ids = [1, -1, -1, -1, 2, 3, 4, -1, -1]
    assert filled(token_ids, guesses, [0, 4, 6, 9]) == [1, 10, 11, 12, 2, 3, 4, 30, 31, 0, 0, 0]


def test_a_place_that_is_not_used_takes_no_guess() -> None:
    assert filled([5, -1], [[10, 11], [20, 21]], [0, 2]) == [5, 10, 0, 0, 0, 0]


def test_a_guess_beyond_the_vocabulary_becomes_its_last_token() -> None:
    assert filled([1, -1, -1], [[100, 12345]], [0, 3]) == [1, 99, 99]
    assert filled([1, -1, -1], [[99, 0]], [0, 3]) == [1, 99, 0]
