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
    last = last_rows(batch, kept)
    return ChainStart(
        outputs=outputs.index_select(0, last),
        positions=batch.positions.index_select(1, last),
        contexts=torch.where(kept > 0, contexts + kept, 0),
        page_tables=batch.page_tables,
    )


def last_rows(batch: PassBatch | VerifyBatch | PromptBatch, kept: Tensor) -> Tensor:
    """Of each span the last of its first `kept` rows, both int64 [S]; any row where none is kept."""
    return (batch.span_starts[:-1] + kept - 1).clamp(min=0)


def last_rows_alone(batch: PromptBatch, *, contexts: Tensor, kept: Tensor) -> tuple[Tensor, VerifyBatch]:
    """`last_rows` of a prompt's chunks, and those as spans of one row that are in their cells already.

    contexts int64 [S]: tokens of each sequence before its chunk. Behind the S rows come so many of the last
    one again that there is a power of two of them, as graphs have: each number has kernels of its own.
    """
    spans = kept.shape[0]
    count = 1 << (spans - 1).bit_length()
    places = torch.arange(count, device=kept.device).clamp(max=spans - 1)
    last = last_rows(batch, kept).index_select(0, places)
    alone = VerifyBatch(
        token_ids=batch.token_ids.index_select(0, last),
        positions=batch.positions.index_select(1, last),
        cells=torch.full_like(last, -1),
        span_starts=torch.arange(count + 1, device=kept.device),
        slots=batch.slots.index_select(0, places),
        contexts=(contexts + kept - 1).index_select(0, places),
        page_tables=batch.page_tables.index_select(0, places),
        accepted=torch.zeros_like(last),
        width=1,
    )
    return last, alone


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainRows:
    """The rows of all guesses of a chain but for their tokens; N steps, of which each is one row a sequence.

    A row that no page is held for, and one of an unused place, reads the first cell of any page and writes
    nothing: what it gives is to be dropped.
    """

    positions: Tensor  # int64 [3, N, S]
    cells: Tensor  # int64 [N, S]
    contexts: Tensor  # int64 [N, S]
    page_tables: Tensor  # int32 [S, max_pages], without negative entries
    span_starts: Tensor  # int64 [S+1]
    accepted: Tensor  # int64 [S], zeros

    def batch(self, step: int, tokens: Tensor) -> VerifyBatch:
        """The rows of guess number `step`, from 1, which is behind tokens int64 [S]; shapes are a graph's."""
        return VerifyBatch(
            token_ids=tokens,
            positions=self.positions[:, step - 1],
            cells=self.cells[step - 1],
            span_starts=self.span_starts,
            slots=self.span_starts[:-1],
            contexts=self.contexts[step - 1],
            page_tables=self.page_tables,
            accepted=self.accepted,
            width=1,
        )


def chain_rows(start: ChainStart, *, steps: int, page_tokens: int) -> ChainRows:
    """The rows behind `start`: none of them but for its token depends on a guess."""
    sequences, device = start.contexts.shape[0], start.contexts.device
    step = torch.arange(steps, device=device)[:, None]
    places = start.contexts + step
    held_tokens = (start.page_tables >= 0).sum(dim=1) * page_tokens
    real = (start.contexts > 0) & (places < held_tokens)
    page_tables = start.page_tables.clamp(min=0)
    entries = (places // page_tokens).clamp(max=page_tables.shape[1] - 1)
    pages = page_tables.gather(1, entries.t()).t()
    return ChainRows(
        positions=start.positions[:, None] + (step + 1),
        cells=torch.where(real, pages * page_tokens + places % page_tokens, -1),
        contexts=torch.where(real, places, 0),
        page_tables=page_tables,
        span_starts=torch.arange(sequences + 1, device=device),
        accepted=torch.zeros_like(start.contexts),
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
