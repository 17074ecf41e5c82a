"""Of prompts that begin alike and are read at the same time, one takes each checkpoint."""

from __future__ import annotations

from sparkle.engine.blocks import BlockChain
from sparkle.engine.request import Request
from sparkle.engine.shared_places import SharedPlaces
from tests.engine.cache_rig import document, request

BLOCK_TOKENS, KEEP_S = 4, 10.0
LONG = document(0, 100)


def planned(
    of: SharedPlaces, prompt: tuple[int, ...], *, tenant: str = "a", now_s: float = 0.0
) -> tuple[Request, set[int]]:
    """A request that begins to read this, and its places."""
    one = request("one", prompt, tenant=tenant)
    chain = BlockChain(tenant, BLOCK_TOKENS)
    chain.extend(prompt)
    of.plan(one, chain, now_s)
    assert one.places is not None
    return one, {*one.places.places}


def shared_places() -> SharedPlaces:
    return SharedPlaces(block_tokens=BLOCK_TOKENS, keep_s=KEEP_S)


def test_a_place_is_one_requests_until_that_ends() -> None:
    shared = shared_places()
    first, places = planned(shared, LONG)
    # 8 blocks before the end
    assert places == {68}
    # all that another is known to have too
    second, places = planned(shared, LONG)
    assert places == {96}
    assert planned(shared, LONG)[1] == set()
    shared.end(first)
    assert first.places is None
    assert planned(shared, LONG)[1] == {68}
    shared.end(second)
    assert planned(shared, LONG)[1] == {96}


def test_the_place_where_two_prompts_part_is_the_seconds_and_not_the_thirds() -> None:
    shared = shared_places()
    planned(shared, LONG[:40])
    # 44 is its own: it ends eight tokens later
    assert planned(shared, (*LONG[:40], *(7,) * 12))[1] == {40, 44}
    assert planned(shared, (*LONG[:40], *(8,) * 12))[1] == {44}


def test_prompts_of_two_tenants_have_nothing_in_common() -> None:
    shared = shared_places()
    planned(shared, LONG)
    assert planned(shared, LONG, tenant="b")[1] == {68}


def test_what_was_seen_long_ago_is_forgotten() -> None:
    shared = shared_places()
    planned(shared, LONG[:40])
    shared.forget_old(KEEP_S - 0.1)
    second, places = planned(shared, (*LONG[:40], *(7,) * 12), now_s=1.0)
    assert 40 in places
    shared.end(second)
    shared.forget_old(KEEP_S + 1.0)
    assert 40 not in planned(shared, (*LONG[:40], *(8,) * 12), now_s=KEEP_S + 1.0)[1]
