"""The index of checkpoints: what is found, what leaves first, and when its time is over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkle.engine.blocks import BlockChain
from sparkle.engine.checkpoints import MOST_CONVERSATIONS, Checkpoint, Checkpoints
from sparkle.engine.seen_blocks import MOST_BLOCKS, SeenBlocks

BLOCK = 4
TOKENS = list(range(100, 130))


def chain(tokens: Sequence[int] = TOKENS, tenant: str | None = "a") -> BlockChain:
    made = BlockChain(tenant, BLOCK)
    made.extend(tokens)
    return made


def checkpoint(
    position: int,
    tokens: Sequence[int] = TOKENS,
    conversation: str | None = None,
    tenant: str | None = "a",
) -> Checkpoint:
    return Checkpoint(
        prefix=chain(tokens, tenant).prefix(tokens, position),
        slot=position,
        pages=(),
        conversations=[conversation],
        tenant=tenant,
    )


def held(*positions: int, now_s: float = 0.0) -> Checkpoints:
    made = Checkpoints(keep_s=10.0)
    for position in positions:
        made.add(checkpoint(position), now_s)
    return made


@pytest.mark.parametrize(
    ("length", "most", "found"),
    [(30, 29, 22), (30, 21, 20), (22, 21, 20), (21, 20, 20), (21, 19, 8), (8, 7, None), (9, 8, 8)],
)
def test_the_deepest_one_that_the_tokens_begin_with_is_found(
    length: int, most: int, found: int | None
) -> None:
    tokens = TOKENS[:length]
    one = held(8, 20, 22).deepest(chain(tokens), tokens, most)
    assert (None if one is None else one.position) == found


@pytest.mark.parametrize(("changed", "found"), [(21, 20), (20, 20), (19, 8), (8, 8), (7, None), (0, None)])
def test_a_token_that_differs_is_seen_in_the_middle_of_a_block_too(changed: int, found: int | None) -> None:
    tokens = list(TOKENS)
    tokens[changed] = 1
    one = held(8, 20, 22).deepest(chain(tokens), tokens, 29)
    assert (None if one is None else one.position) == found


def test_another_tenants_tokens_find_nothing() -> None:
    assert held(8, 20).deepest(chain(tenant="b"), TOKENS, 29) is None
    assert held(8, 20).deepest(chain(tenant=None), TOKENS, 29) is None


def test_among_equals_the_least_recently_used_leaves_first() -> None:
    made = Checkpoints(keep_s=10.0)
    ones = [checkpoint(8, [number] * 8) for number in range(3)]
    for one in ones:
        made.add(one, 0.0)
    made.use(ones[0], 0.0)
    assert made.first_to_leave("a", ()) is ones[1]
    made.remove(ones[1])
    assert made.first_to_leave("a", {ones[2]}) is ones[0]
    assert made.first_to_leave("a", {ones[0], ones[2]}) is None


def test_a_long_one_outlives_short_ones_by_what_it_saves() -> None:
    made = Checkpoints(keep_s=10.0)
    long = checkpoint(29)
    made.add(long, 0.0)
    left: list[Checkpoint] = []
    for number in range(20):
        made.add(checkpoint(8, [number] * 8), 0.0)
        leaving = made.first_to_leave("a", ())
        assert leaving is not None
        made.remove(leaving)
        left.append(leaving)
    # 8, 16 and 24 tokens' worth of others went before it
    assert left.index(long) == 3


def test_a_new_one_is_worth_a_slot_where_the_lowest_saves_no_more() -> None:
    made = held(8, 20)
    assert made.is_worth_more(8, "a", ())
    assert not made.is_worth_more(4, "a", ())
    assert not made.is_worth_more(12, "a", made.all[:0] + [one for one in made.all if one.position == 8])
    assert not Checkpoints(1.0).is_worth_more(100, "a", ())


def test_a_tenant_with_long_ones_that_it_uses_all_the_time_takes_nobodys_share() -> None:
    made = Checkpoints(keep_s=10.0)
    mine = [checkpoint(8, [number] * 8, tenant="b") for number in range(3)]
    theirs = [checkpoint(24, [number] * 24) for number in range(9)]
    for one in (*mine, *theirs):
        made.add(one, 0.0)
    for number in range(50):
        for one in theirs:
            if one in made.all:
                made.use(one, 0.0)
        assert made.is_worth_more(24, "a", ())
        leaving = made.first_to_leave("a", ())
        assert leaving is not None
        assert leaving.tenant == "a"
        made.remove(leaving)
        made.add(checkpoint(24, [100 + number] * 24), 0.0)
    # who holds less gets more, up to as much
    for number in range(20):
        assert made.is_worth_more(8, "b", ())
        leaving = made.first_to_leave("b", ())
        assert leaving is not None
        made.remove(leaving)
        made.add(checkpoint(8, [200 + number] * 8, tenant="b"), 0.0)
        assert leaving.tenant == ("a" if number < 3 else "b")
    assert Counter(one.tenant for one in made.all) == {"a": 6, "b": 6}


TENANTS = st.sampled_from(["a", "b", "c", None])


@given(st.lists(st.tuples(TENANTS, st.integers(4, 24), st.booleans()), min_size=1, max_size=60))
def test_nobody_loses_one_to_a_tenant_that_holds_as_many(added: list[tuple[str | None, int, bool]]) -> None:
    made, most = Checkpoints(keep_s=10.0), 8
    for number, (tenant, position, uses) in enumerate(added):
        if len(made.all) == most:
            before = Counter(one.tenant for one in made.all)
            leaving = made.first_to_leave(tenant, ())
            assert leaving is not None
            assert leaving.tenant == tenant or before[leaving.tenant] > before[tenant]
            assert leaving.tenant == tenant or before[leaving.tenant] == max(before.values())
            made.remove(leaving)
        one = checkpoint(position, [number] * 24, tenant=tenant)
        made.add(one, 0.0)
        if uses:
            for other in made.all:
                if other.tenant == tenant:
                    made.use(other, 0.0)


def test_their_time_begins_anew_with_each_use() -> None:
    made = held(8, 20)
    assert (made.next_expiry_s, made.expired(9.9)) == (10.0, [])
    first = next(one for one in made.all if one.position == 8)
    made.use(first, 5.0)
    assert [one.position for one in made.expired(10.0)] == [20]
    made.remove(made.expired(10.0)[0])
    assert made.next_expiry_s == 15.0
    made.remove(first)
    assert made.all == []
    assert made.next_expiry_s == float("inf")


def test_a_conversation_takes_its_own_with_it_but_not_what_another_made_too() -> None:
    made = Checkpoints(keep_s=10.0)
    for position, conversation in ((8, "x"), (12, "y"), (16, None)):
        made.add(checkpoint(position, conversation=conversation), 0.0)
    made.all[0].made_again("y")
    assert made.end_conversation("b", "x") == []
    assert made.end_conversation("a", "x") == []
    assert [one.position for one in made.end_conversation("a", "y")] == [8, 12]


def test_endless_conversations_that_make_the_same_take_no_more_memory() -> None:
    made = held()
    one = checkpoint(8, conversation="0")
    made.add(one, 0.0)
    names = [str(number) for number in range(1, 1000)]
    for name in (*names, *names[-2:], names[-3]):
        one.made_again(name)
    last = [*names[-MOST_CONVERSATIONS:-3], *names[-2:], names[-3]]
    assert one.conversations == last
    # it goes with the last of these, whatever became of those before
    assert [made.end_conversation("a", name) for name in (*names[:5], *last[:-1])] == [[]] * (
        4 + MOST_CONVERSATIONS
    )
    assert made.end_conversation("a", last[-1]) == [one]


def test_blocks_are_seen_as_far_as_two_prompts_agree_and_for_a_while() -> None:
    seen = SeenBlocks(keep_s=10.0)
    seen.add(chain(), 0.0)
    other = [*TOKENS[:18], 1, *TOKENS[19:]]
    assert seen.deepest(chain(other), 0) == 4
    assert seen.deepest(chain(other), 5) == 5
    assert seen.deepest(chain(other, tenant="b"), 0) == 0
    seen.add(chain(TOKENS[:8]), 5.0)
    seen.forget_old(10.0)
    assert (len(seen), seen.deepest(chain(other), 0)) == (2, 2)
    seen.forget_old(15.0)
    assert len(seen) == 0


def test_no_more_blocks_are_remembered_than_fit() -> None:
    seen = SeenBlocks(keep_s=10.0)
    tokens = list(range(BLOCK * (MOST_BLOCKS + 3)))
    seen.add(chain(tokens), 0.0)
    assert len(seen) == MOST_BLOCKS
    # the deepest are those that stay
    assert seen.deepest(chain(tokens), 0) == MOST_BLOCKS + 3
