"""Random paged caches with every trap in them: pages out of order, NaN in each cell that holds no token."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tests.kernels.spans import bounds_of, starts_of


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedCase:
    """What a paged attention is given; `spans` new tokens after `contexts` old ones, for each sequence."""

    contexts: tuple[int, ...]
    spans: tuple[int, ...]
    heads: int = 4
    kv_heads: int = 2
    dim: int = 32
    page_tokens: int = 64
    cache: torch.dtype = torch.float8_e4m3fn
    spare_pages: int = 2

    @classmethod
    def of_27b(
        cls,
        contexts: tuple[int, ...],
        spans: tuple[int, ...],
        *,
        page_tokens: int = 64,
        cache: torch.dtype = torch.float8_e4m3fn,
    ) -> PagedCase:
        """With the heads of Qwen3.8-27B."""
        return cls(
            contexts=contexts,
            spans=spans,
            heads=24,
            kv_heads=4,
            dim=256,
            page_tokens=page_tokens,
            cache=cache,
        )

    @property
    def pages_of(self) -> list[int]:
        """Pages of each sequence."""
        return [-(-(c + n) // self.page_tokens) for c, n in zip(self.contexts, self.spans, strict=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedInputs:
    """The tensors, as verify_attention takes them; `gate` is the odd half of the heads of a wider product."""

    query: Tensor
    gate: Tensor
    key_pages: Tensor
    value_pages: Tensor
    page_tables: Tensor
    span_starts: Tensor
    contexts: Tensor

    @property
    def attended(self) -> tuple[Tensor, ...]:
        """The positional arguments."""
        return (
            self.query,
            self.key_pages,
            self.value_pages,
            self.page_tables,
            self.span_starts,
            self.contexts,
        )

    def on(self, device: torch.device) -> PagedInputs:
        """The same on a device, in the same layout."""
        wide = torch.stack((self.query, self.gate), dim=2).to(device)
        return PagedInputs(
            query=wide[:, :, 0],
            gate=wide[:, :, 1],
            key_pages=self.key_pages.to(device),
            value_pages=self.value_pages.to(device),
            page_tables=self.page_tables.to(device),
            span_starts=self.span_starts.to(device),
            contexts=self.contexts.to(device),
        )


def paged_inputs(case: PagedCase, *, seed: int, dtype: torch.dtype = torch.bfloat16) -> PagedInputs:
    """Normal values; keys as long as queries after their norm, so that the softmax is far from flat."""
    draw = torch.Generator().manual_seed(seed)
    rows, pages = sum(case.spans), sum(case.pages_of) + case.spare_pages
    wide = torch.randn(rows, case.heads, 2, case.dim, generator=draw).to(dtype)
    order = [int(page) for page in torch.randperm(pages, generator=draw)]
    most = max([*case.pages_of, 0]) + 1
    tables = torch.full((len(case.spans), most), -1, dtype=torch.int32)
    keys, values = (
        torch.full((pages, case.page_tokens, case.kv_heads, case.dim), torch.nan) for _ in range(2)
    )
    for span, count in enumerate(case.pages_of):
        mine = [order.pop() for _ in range(count)]
        tables[span, :count] = torch.tensor(mine, dtype=torch.int32)
        for place in range(case.contexts[span] + case.spans[span]):
            page, cell = mine[place // case.page_tokens], place % case.page_tokens
            for pages_ in (keys, values):
                pages_[page, cell] = torch.randn(case.kv_heads, case.dim, generator=draw)
    return PagedInputs(
        query=wide[:, :, 0],
        gate=wide[:, :, 1],
        key_pages=keys.to(case.cache),
        value_pages=values.to(case.cache),
        page_tables=tables,
        span_starts=starts_of(case.spans),
        contexts=torch.tensor(case.contexts, dtype=torch.int64),
    )


def exact_attention(inputs: PagedInputs, *, scale: float, gated: bool) -> Tensor:
    """float64 [T, H, D], one row and one head at a time."""
    out = torch.full(inputs.query.shape, torch.nan, dtype=torch.float64, device=inputs.query.device)
    page_tokens, kv_heads = inputs.key_pages.shape[1:3]
    group = inputs.query.shape[1] // kv_heads
    for span, (start, stop) in enumerate(bounds_of(inputs.span_starts)):
        context = int(inputs.contexts[span])
        places = torch.arange(context + stop - start, device=inputs.query.device)
        pages = inputs.page_tables[span][places // page_tokens].long()
        keys, values = (
            cache.view(torch.uint8)[pages, places % page_tokens].view(cache.dtype).double()
            if cache.dtype == torch.float8_e4m3fn
            else cache[pages, places % page_tokens].double()
            for cache in (inputs.key_pages, inputs.value_pages)
        )  # [length, Hkv, D]
        for row in range(start, stop):
            seen = context + row - start + 1
            query = inputs.query[row].double().reshape(kv_heads, group, -1)
            scores = torch.einsum("kgd,nkd->kgn", query, keys[:seen]) * scale
            out[row] = torch.einsum("kgn,nkd->kgd", scores.softmax(-1), values[:seen]).flatten(0, 1)
    return out * inputs.gate.double().sigmoid() if gated else out
