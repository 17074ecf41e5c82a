"""Guesses on the device: where they go among the rows of a pass."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from sparkle.engine.accept import with_guesses


def filled(token_ids: Sequence[int], guesses: Sequence[Sequence[int]], starts: Sequence[int]) -> list[int]:
    found = with_guesses(torch.tensor(token_ids), torch.tensor(guesses), torch.tensor(starts), vocab_size=100)
    return [int(token) for token in found]


def test_guesses_stand_behind_the_first_rows_of_their_spans() -> None:
    guesses = [[10, 11, 12], [20, 21, 22], [30, 31, 32]]
    # a whole draft, tokens that are known, and two guesses of three; two rows are unused
    token_ids = [1, -1, -1, -1, 2, 3, 4, -1, -1, 0, 0, 0]
    assert filled(token_ids, guesses, [0, 4, 6, 9]) == [1, 10, 11, 12, 2, 3, 4, 30, 31, 0, 0, 0]


def test_a_guess_beyond_the_vocabulary_becomes_its_last_token() -> None:
    assert filled([1, -1, -1], [[100, 12345]], [0, 3]) == [1, 99, 99]
    assert filled([1, -1, -1], [[99, 0]], [0, 3]) == [1, 99, 0]
