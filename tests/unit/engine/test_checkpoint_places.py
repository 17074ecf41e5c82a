"""Where checkpoints are taken along a prompt, and what that costs in chunks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkle.engine.checkpoint_places import CheckpointPlaces

BLOCK = 64


def places(num_tokens: int, *, cached: int = 0, shared: int = 0) -> CheckpointPlaces:
    return CheckpointPlaces(num_tokens, cached=cached, shared=shared, block_tokens=BLOCK)


@pytest.mark.parametrize(
    ("num_tokens", "cached", "expected"),
    [
        (300, 0, []),
        (519, 0, []),
        # 512 tokens and those that open the answer
        (520, 0, [512]),
        (960, 0, [896]),
        (961, 0, [512]),
        (1024, 0, [512]),
        (1025, 0, [576]),
        (33_000, 0, [32_512]),
        (262_144, 0, [261_632]),
        (33_000, 32_000, [32_512]),
        (33_000, 32_064, [32_960]),
        (33_000, 32_512, []),
    ],
)
def test_a_long_prompt_has_one_where_eight_blocks_are_left_or_at_its_end(
    num_tokens: int, cached: int, expected: list[int]
) -> None:
    assert sorted(places(num_tokens, cached=cached).places) == expected


@pytest.mark.parametrize(
    ("num_tokens", "cached", "shared", "expected"),
    [
        (300, 0, 64, []),
        (300, 0, 128, [128]),
        (300, 128, 192, []),
        (300, 128, 256, [256]),
        # as good as the place that is there anyway
        (1095, 0, 704, [640]),
        (1095, 0, 1088, [640, 1088]),
    ],
)
def test_what_an_earlier_prompt_had_too_is_a_place_where_that_is_worth_a_pass(
    num_tokens: int, cached: int, shared: int, expected: list[int]
) -> None:
    assert sorted(places(num_tokens, cached=cached, shared=shared).places) == expected


@given(
    num_tokens=st.integers(1, 40_000),
    rows=st.integers(1, 9000),
    shares=st.tuples(st.floats(0, 1), st.floats(0, 1)),
)
def test_chunks_are_whole_and_end_at_every_place(
    num_tokens: int, rows: int, shares: tuple[float, float]
) -> None:
    blocks = (num_tokens - 1) // BLOCK
    cached, shared = (int(blocks * share) * BLOCK for share in shares)
    made = places(num_tokens, cached=cached, shared=shared)
    ends, start = list[int](), cached
    while start < num_tokens:
        end = made.chunk_end(start, rows)
        assert start < end <= min(start + rows, num_tokens)
        # less than a block is left over of what a large chunk could have been
        large = rows >= 8 * BLOCK and end < num_tokens and end not in made.places
        assert not large or (end % BLOCK == 0 and end > start + rows - BLOCK)
        if made.is_wanted(end):
            assert cached < end < num_tokens
            assert end % BLOCK == 0
        ends.append(end)
        start = end
    assert made.places <= set(ends)


def test_where_chunks_end_anyway_they_double() -> None:
    made = places(100_000)
    found = [end for end in range(8448, 90_000, 8448) if made.is_wanted(end)]
    assert found == [8448, 16_896, 33_792, 67_584]


def test_none_where_another_request_sees_to_it() -> None:
    made = places(1095, shared=1024)
    made.leave_out(640)
    assert made.chunk_end(0, 8448) == 1024
    assert not made.is_wanted(1095)
