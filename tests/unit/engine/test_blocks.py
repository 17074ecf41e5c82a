"""Names of prefixes: equal where tenant and tokens are, and only there."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkle.engine.blocks import BlockChain

TOKENS = st.lists(st.integers(0, 2**31), max_size=40)


def chain(tokens: list[int], tenant: str | None = "a", block_tokens: int = 4) -> BlockChain:
    made = BlockChain(tenant, block_tokens)
    made.extend(tokens)
    return made


@given(TOKENS, st.integers(1, 9), st.data())
def test_a_chain_is_the_same_in_whatever_pieces_it_came(
    tokens: list[int], block_tokens: int, data: st.DataObject
) -> None:
    whole = chain(tokens, block_tokens=block_tokens)
    assert whole.blocks == len(tokens) // block_tokens
    pieces = BlockChain("a", block_tokens)
    for end in sorted(data.draw(st.lists(st.integers(0, len(tokens)), max_size=5))):
        pieces.extend(tokens[:end])
        assert pieces.blocks == end // block_tokens
    pieces.extend(tokens)
    assert [pieces[n] for n in range(pieces.blocks + 1)] == [whole[n] for n in range(whole.blocks + 1)]


@given(TOKENS, TOKENS, st.data())
def test_two_prefixes_have_one_name_where_all_their_tokens_are_equal(
    first: list[int], second: list[int], data: st.DataObject
) -> None:
    common = data.draw(TOKENS)
    one, other = [*common, *first], [*common, *second]
    here = data.draw(st.integers(0, len(one)))
    there = data.draw(st.one_of(st.just(min(here, len(other))), st.integers(0, len(other))))
    names = chain(one).prefix(one, here), chain(other).prefix(other, there)
    assert (names[0] == names[1]) == (one[:here] == other[:there])


@pytest.mark.parametrize("tenant", [None, "", "b", "tenant a"])
@pytest.mark.parametrize("position", [0, 1, 4, 7, 8])
def test_no_two_tenants_share_a_name(tenant: str | None, position: int) -> None:
    tokens = list(range(8))
    assert chain(tokens, tenant).prefix(tokens, position) != chain(tokens).prefix(tokens, position)


def test_tokens_of_more_than_one_byte_are_told_apart() -> None:
    assert chain([1, 0, 0, 0])[1] != chain([256, 0, 0, 0])[1] != chain([0, 1, 0, 0])[1]
