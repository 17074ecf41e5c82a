"""Whatever is taken and given back: nothing is handed out twice, nothing is lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkle.engine.pages import PagePool
from sparkle.engine.slots import SlotPool


@given(num_pages=st.integers(1, 20), counts=st.lists(st.integers(-3, 8), max_size=40))
def test_pages(num_pages: int, counts: list[int]) -> None:
    """A count of 0 or more takes so many; a negative one gives back what was taken earliest."""
    pool = PagePool(num_pages, page_tokens=4)
    held: list[tuple[int, ...]] = []
    for count in counts:
        if count < 0 and held:
            pool.give_back(held.pop(0))
        elif count >= 0:
            free_before = pool.free
            pages = pool.take(count)
            if pages is None:
                assert count > len(free_before)
                assert pool.free == free_before
            else:
                assert len(set(pages)) == count
                assert free_before >= set(pages)
                held.append(pages)
        all_pages = sorted([*pool.free, *(page for pages in held for page in pages)])
        assert all_pages == list(range(num_pages))
        assert pool.num_free == len(pool.free)


@pytest.mark.parametrize(("tokens", "pages"), [(0, 0), (1, 1), (15, 1), (16, 1), (17, 2), (32, 2), (33, 3)])
def test_pages_for_tokens(tokens: int, pages: int) -> None:
    assert PagePool(8, page_tokens=16).pages_for(tokens) == pages


@given(num_slots=st.integers(1, 6), takes=st.lists(st.booleans(), max_size=40))
def test_slots(num_slots: int, takes: list[bool]) -> None:
    pool = SlotPool(num_slots)
    held: list[int] = []
    for take in takes:
        if take:
            slot = pool.take()
            assert (slot is None) == (len(held) == num_slots)
            if slot is not None:
                held.append(slot)
        elif held:
            pool.give_back(held.pop(0))
        assert sorted([*pool.free, *held]) == list(range(num_slots))
        assert pool.num_free == num_slots - len(held)
