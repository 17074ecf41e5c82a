"""What all layers of one pass share: where each row stands and where it is kept. Knows no weights."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class PassLayout:
    """T rows of S spans; fields as the ops take them."""

    span_starts: Tensor  # int64 [S+1]
    slots: Tensor  # int64 [S]
    contexts: Tensor  # int64 [S]
    page_tables: Tensor  # int32 [S, max_pages]
    cells: Tensor  # int64 [T], see kv_cells
    rotary_table: Tensor  # float32 [2, T, lanes]


def kv_cells(span_starts: Tensor, contexts: Tensor, page_tables: Tensor, *, page_tokens: int) -> Tensor:
    """Where the pass's rows go in the KV pages: int64 [T], page · page_tokens + place in the page.

    Raises ValueError where a sequence's table lacks a page for one of its tokens.
    """
    lengths = span_starts.diff()
    needed = (contexts + lengths + page_tokens - 1) // page_tokens  # [S] pages
    given = (page_tables >= 0).cumprod(dim=1).sum(dim=1)
    short = (needed > given).nonzero()
    if short.numel():
        span = int(short[0])
        raise ValueError(
            f"span {span} needs {int(needed[span])} pages but its table holds {int(given[span])}"
        )
    rows = torch.arange(int(span_starts[-1]), device=span_starts.device)
    spans = torch.repeat_interleave(lengths)
    places = contexts[spans] + rows - span_starts[spans]  # in the sequence
    return page_tables[spans, places // page_tokens].long() * page_tokens + places % page_tokens
