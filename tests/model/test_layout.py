"""Where the rows of a pass are kept."""

from __future__ import annotations

import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

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


@settings(deadline=None)  # a busy machine is no fault of the layout
@given(data=st.data(), page_tokens=st.integers(1, 9))
def test_cells_against_the_definition(data: st.DataObject, page_tokens: int) -> None:
    lengths = data.draw(st.lists(st.integers(0, 12), max_size=5))
    contexts = [data.draw(st.integers(0, 12)) for _ in lengths]
    needed = [
        -(-(context + length) // page_tokens) for context, length in zip(contexts, lengths, strict=True)
    ]
    order = data.draw(st.permutations(range(sum(needed))))
    tables = [[order.pop() for _ in range(count)] for count in needed]
    expected = [
        table[place // page_tokens] * page_tokens + place % page_tokens
        for table, context, length in zip(tables, contexts, lengths, strict=True)
        for place in range(context, context + length)
    ]
    width = max(needed, default=0) + 1
    padded = [table + [-1] * (width - len(table)) for table in tables]
    assert cells(lengths, contexts, padded, page_tokens) == expected
    assert len(set(expected)) == sum(lengths)


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
