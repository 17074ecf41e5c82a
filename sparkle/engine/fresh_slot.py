"""Makes a slot and its pages a new sequence's: nothing of the one before is left. Knows no model."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sparkle.engine.plan import Span
from sparkle.engine.transfer import to_device
from sparkle.model.cache import SequenceCache
from sparkle.model.fp8_cache import Fp8Cache


def make_fresh(
    span: Span, cache: SequenceCache | Fp8Cache, page_tables: Tensor, drafting: Sequence[Tensor]
) -> None:
    """Zero what the cache holds for the span's request, and write its row of the page tables.

    page_tables int32 [slots, max_pages], -1 behind a request's pages; `drafting`: what the draft model keeps
    of the slot, see Helper.slot_state.
    """
    cache.zero_slot(span.slot)
    cache.zero_pages(span.pages)
    for part in drafting:
        part.zero_()
    row = page_tables[span.slot]
    row.fill_(-1)
    row[: len(span.pages)] = to_device(span.pages, torch.int32, page_tables.device)
