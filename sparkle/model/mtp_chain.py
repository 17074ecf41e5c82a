"""Where the draft head's guessing begins in each sequence, and where its guesses stand. Knows no weights."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sparkle.model.decoder import PassBatch
from sparkle.model.fp8_batch import PromptBatch, VerifyBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainStart:
    """S sequences, each at the last of its rows that the head keeps; all on the head's device."""

    outputs: Tensor  # [S, hidden], the head's of that row
    positions: Tensor  # int64 [3, S], of that row
    contexts: Tensor  # int64 [S], rows kept, that one among them; 0 for an unused place
    page_tables: Tensor  # int32 [S, max_pages], -1 past a sequence's last page


def chain_start(
    batch: PassBatch | VerifyBatch | PromptBatch, outputs: Tensor, *, contexts: Tensor, kept: Tensor
) -> ChainStart:
    """Behind the first `kept` rows, int64 [S], of each span that the head has read; 0 for an unused place.

    outputs [T, hidden], of that reading, in front of which `contexts` int64 [S] rows had been read. The rows
    past those kept count for nothing: the chain writes over them.
    """
    last = (batch.span_starts[:-1] + kept - 1).clamp(min=0)
    return ChainStart(
        outputs=outputs.index_select(0, last),
        positions=batch.positions.index_select(1, last),
        contexts=torch.where(kept > 0, contexts + kept, 0),
        page_tables=batch.page_tables,
    )


def verify_rows(start: ChainStart, tokens: Tensor, step: int, *, page_tokens: int) -> VerifyBatch:
    """The row of each sequence's guess number `step`, from 1: tokens int64 [S]. Shapes are those of a graph.

    A row that no page is held for, and one of an unused place, reads the first cell of any page and writes
    nothing: what it gives is to be dropped.
    """
    places = start.contexts + (step - 1)
    held_tokens = (start.page_tables >= 0).sum(dim=1) * page_tokens
    real = (start.contexts > 0) & (places < held_tokens)
    page_tables = start.page_tables.clamp(min=0)
    last_entry = page_tables.shape[1] - 1
    pages = page_tables.gather(1, (places // page_tokens).clamp(max=last_entry)[:, None])[:, 0]
    starts = torch.arange(places.shape[0] + 1, device=places.device)
    return VerifyBatch(
        token_ids=tokens,
        positions=start.positions + step,
        cells=torch.where(real, pages * page_tokens + places % page_tokens, -1),
        span_starts=starts,
        slots=starts[:-1],
        contexts=torch.where(real, places, 0),
        page_tables=page_tables,
        accepted=torch.zeros_like(places),
        width=1,
    )


def float_rows(start: ChainStart, tokens: Tensor, step: int) -> PassBatch:
    """The same for the float32 decoder, whose tables must hold a page for every row."""
    starts = torch.arange(tokens.shape[0] + 1, device=tokens.device)
    return PassBatch(
        token_ids=tokens,
        positions=start.positions + step,
        span_starts=starts,
        slots=starts[:-1],
        contexts=start.contexts + (step - 1),
        page_tables=start.page_tables,
        logit_rows=starts[:-1],
    )
