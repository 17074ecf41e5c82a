"""Where a chunk's attention is cut: every key once, in few shapes, and long prompts as they are."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkle.engine.settings import GPU_PASS_TOKENS
from sparkle.kernels.prefill_cuts import BLOCK_TOKENS, WHOLE_TOKENS, Cuts, cuts_of, filled_rows

LONGEST, MOST_ROWS = 262_144, WHOLE_TOKENS


def test_nothing_is_added_to_the_pass_that_the_engine_reads_long_prompts_in() -> None:
    assert filled_rows(GPU_PASS_TOKENS) == GPU_PASS_TOKENS == WHOLE_TOKENS


@given(st.integers(0, LONGEST), st.integers(1, MOST_ROWS))
def test_every_key_is_in_one_call(context: int, rows: int) -> None:
    cuts = cuts_of(context, rows)
    ends = [0, *(end for _, end in cuts.runs)]
    assert list(cuts.runs) == list(pairwise(ends))
    assert cuts.start == ends[-1]
    behind = context - cuts.start
    assert 0 <= behind < BLOCK_TOKENS
    assert cuts.rows == filled_rows(rows)
    assert cuts.own_rows == filled_rows(behind + rows)
    for length in (end - start for start, end in cuts.runs):
        assert any(
            length % unit == 0 and ((length // unit).bit_count() == 1 or length == 3 * unit)
            for unit in (1024, 8448)
        )


@given(st.integers(1, 4 * MOST_ROWS))
def test_rows_are_filled_up_by_a_quarter_at_most(rows: int) -> None:
    filled = filled_rows(rows)
    assert filled >= rows
    assert filled < max(1.25 * rows + 1, rows + 256)
    assert filled_rows(filled) == filled


@pytest.mark.parametrize(
    ("context", "rows", "cuts"),
    [
        (0, 1, Cuts(runs=(), rows=256, start=0, own_rows=256)),
        (0, 8448, Cuts(runs=(), rows=8448, start=0, own_rows=8448)),
        (3 * 8448, 8448, Cuts(runs=((0, 25_344),), rows=8448, start=25_344, own_rows=8448)),
        (3 * 4096, 4096, Cuts(runs=((0, 8192), (8192, 12_288)), rows=4096, start=12_288, own_rows=4096)),
        (1023, 2, Cuts(runs=(), rows=256, start=0, own_rows=1280)),
        (33_000, 200, Cuts(runs=((0, 32_768),), rows=256, start=32_768, own_rows=512)),
    ],
)
def test_chunks(context: int, rows: int, cuts: Cuts) -> None:
    assert cuts_of(context, rows) == cuts


def test_a_long_prompt_alone_is_read_in_calls_of_nothing_but_its_own_rows_and_keys() -> None:
    for chunk in range(LONGEST // WHOLE_TOKENS):
        cuts = cuts_of(chunk * WHOLE_TOKENS, WHOLE_TOKENS)
        assert (cuts.start, cuts.own_rows, cuts.rows) == (chunk * WHOLE_TOKENS, WHOLE_TOKENS, WHOLE_TOKENS)
        assert len(cuts.runs) == chunk.bit_count() - (chunk % 4 == 3)


def test_there_are_few_shapes() -> None:
    """Of all chunks of a whole context: rows, and keys of a call."""
    runs, own = set[tuple[int, int]](), set[int]()
    for context in range(0, LONGEST, 509):
        for rows in range(1, MOST_ROWS + 1, 251):
            cuts = cuts_of(context, rows)
            runs |= {(cuts.rows, end - start) for start, end in cuts.runs}
            own.add(cuts.own_rows)
    assert len(runs) <= 17 * 15
    assert len(own) <= 18
