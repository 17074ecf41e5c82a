"""Where the rows of a pass are kept."""

from __future__ import annotations

import re

import pytest
import torch

from sparkle.model.layout import kv_cells


def cells(lengths: list[int], contexts: list[int], tables: list[list[int]], page_tokens: int) -> list[int]:
    found = kv_cells(
        torch.tensor([0, *lengths]).cumsum(0),
        torch.tensor(contexts, dtype=torch.int64),
        torch.tensor(tables, dtype=torch.int32).reshape(len(lengths), -1 if lengths else 0),
        page_tokens=page_tokens,
    )
    assert found.dtype == torch.int64
    return [int(cell) for cell in found]


def test_rows_go_on_where_their_sequence_ended() -> None:
    tables = [[9, 4, -1], [2, -1, -1], [7, 0, 1], [-1, -1, -1]]
    expected = [
        *(9 * 3 + 2, 4 * 3 + 0),  # places 2, 3
        2 * 3 + 0,  # place 0
        *(0 * 3 + 2, 1 * 3 + 0, 1 * 3 + 1),  # places 5, 6, 7
    ]
    assert cells([2, 1, 3, 0], [2, 0, 5, 0], tables, page_tokens=3) == expected


@pytest.mark.parametrize("page_tokens", [1, 2, 16, 100])
def test_every_place_of_a_sequence_has_its_own_cell(page_tokens: int) -> None:
    pages = list(range(40, 0, -1))
    found = cells([40], [0], [pages], page_tokens)
    assert found == [pages[at // page_tokens] * page_tokens + at % page_tokens for at in range(40)]


def test_no_spans() -> None:
    assert cells([], [], [], page_tokens=4) == []


@pytest.mark.parametrize(("context", "length"), [(8, 1), (7, 2), (0, 9)])
def test_a_table_that_is_too_short(context: int, length: int) -> None:
    told = "span 1 needs 3 pages but its table holds 2"
    with pytest.raises(ValueError, match=re.escape(told)):
        cells([1, length], [0, context], [[0, 1, 2, 3], [5, 6, -1, -1]], page_tokens=4)
    with pytest.raises(ValueError, match=re.escape(told)):
        cells([1, length], [0, context], [[0, 1], [5, 6]], page_tokens=4)


def test_a_hole_in_a_table() -> None:
    with pytest.raises(ValueError, match="span 0 needs 2 pages but its table holds 0"):
        cells([1], [4], [[-1, 3]], page_tokens=4)
