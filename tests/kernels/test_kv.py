"""Writing keys and values to pages and attending over them, against loops in float64."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from sparkle.kernels import ops
from sparkle.kernels.tolerance import mismatch
from tests.kernels.spans import FLOATS, SPANS, bounds_of, starts_of


@pytest.mark.parametrize("dtype", FLOATS)
def test_write_kv(dtype: torch.dtype) -> None:
    key, value = torch.randn(2, 5, 2, 3).to(dtype)
    pages = torch.full((2, 4, 6, 2, 3), torch.nan, dtype=dtype)
    cells = torch.tensor([23, 0, 6, 5, 11])  # first and last of a page, first and last of all
    ops.write_kv(key, value, pages[0], pages[1], cells)
    for row, cell in enumerate(int(cell) for cell in cells):
        for kind, stored in enumerate((key, value)):
            assert torch.equal(pages[kind, cell // 6, cell % 6], stored[row])
    assert int(pages.isnan().sum()) == 2 * (24 - 5) * 2 * 3


def test_write_nothing() -> None:
    pages = torch.full((1, 2, 2, 3), torch.nan)
    ops.write_kv(torch.empty(0, 2, 3), torch.empty(0, 2, 3), pages, pages, torch.empty(0, dtype=torch.int64))
    assert bool(pages.isnan().all())


def exact_attention(query: Tensor, keys: Tensor, values: Tensor, context: int, scale: float) -> Tensor:
    """One sequence: query [n, H, D], keys and values [context + n, Hkv, D], all float64."""
    out = torch.empty_like(query)
    for row in range(query.shape[0]):
        for head in range(query.shape[1]):
            kv_head = head // (query.shape[1] // keys.shape[1])
            scores = [
                scale * float(query[row, head] @ keys[place, kv_head]) for place in range(context + row + 1)
            ]
            top = max(scores)
            weights = [math.exp(score - top) for score in scores]
            mixed = sum(
                (weight * values[place, kv_head] for place, weight in enumerate(weights)),
                start=torch.zeros_like(query[0, 0]),
            )
            out[row, head] = mixed / sum(weights)
    return out


class Filled:
    """Random contexts in scrambled pages; every cell that no row may see is NaN."""

    def __init__(
        self,
        lengths: tuple[int, ...],
        contexts: list[int],
        page_tokens: int,
        kv_heads: int,
        dtype: torch.dtype,
    ) -> None:
        self.contexts = torch.tensor(contexts, dtype=torch.int64)
        totals = [context + length for context, length in zip(contexts, lengths, strict=True)]
        needed = [math.ceil(total / page_tokens) for total in totals]
        num_pages = sum(needed) + 3
        order = [int(page) for page in torch.randperm(num_pages)]
        self.pages = torch.full((2, num_pages, page_tokens, kv_heads, 6), torch.nan, dtype=dtype)
        self.tables = torch.full((len(lengths), max(needed, default=0) + 2), -1, dtype=torch.int32)
        self.stored: list[Tensor] = []
        for span, (total, count) in enumerate(zip(totals, needed, strict=True)):
            own = [order.pop() for _ in range(count)]
            self.tables[span, :count] = torch.tensor(own, dtype=torch.int32)
            stored = torch.randn(2, total, kv_heads, 6).to(dtype)
            for place in range(total):
                self.pages[:, own[place // page_tokens], place % page_tokens] = stored[:, place]
            self.stored.append(stored.double())


def check_attention(
    lengths: tuple[int, ...],
    contexts: list[int],
    *,
    page_tokens: int = 4,
    heads: int = 4,
    kv_heads: int = 2,
    dtype: torch.dtype = torch.float32,
) -> None:
    filled = Filled(lengths, contexts, page_tokens, kv_heads, dtype)
    query = (2 * torch.randn(sum(lengths), heads, 6)).to(dtype)
    starts = starts_of(lengths)
    got = ops.paged_attention(
        query, filled.pages[0], filled.pages[1], filled.tables, starts, filled.contexts, scale=0.7
    )
    exact = torch.empty_like(query, dtype=torch.float64)
    for span, (start, stop) in enumerate(bounds_of(starts)):
        keys, values = filled.stored[span]
        exact[start:stop] = exact_attention(query[start:stop].double(), keys, values, contexts[span], 0.7)
    assert got.dtype == dtype
    assert mismatch("paged_attention", got, exact) is None


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("lengths", SPANS[:-2], ids=str)
def test_paged_attention(lengths: tuple[int, ...], dtype: torch.dtype) -> None:
    contexts = [(5 * span) % 13 for span in range(len(lengths))]
    check_attention(lengths, contexts, dtype=dtype)


@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (6, 1), (6, 2), (4, 4)])
def test_head_ratios(heads: int, kv_heads: int) -> None:
    check_attention((3, 1), [2, 9], heads=heads, kv_heads=kv_heads)


@pytest.mark.parametrize("page_tokens", [1, 3, 16])
@pytest.mark.parametrize("total", [15, 16, 17])
@pytest.mark.parametrize("length", [1, 2, 15])
def test_page_boundaries(page_tokens: int, total: int, length: int) -> None:
    check_attention((length,), [total - length], page_tokens=page_tokens)


def test_a_long_context() -> None:
    check_attention((65, 1), [0, 300], page_tokens=16, heads=2, kv_heads=1)
