"""Runs sequences through a decoder as the engine would, over a cache full of NaN."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sparkle.model.cache import SequenceCache
from sparkle.model.config import ModelConfig
from sparkle.model.decoder import Decoder, PassBatch
from sparkle.model.taps import Taps

CPU = torch.device("cpu")


@dataclass(slots=True)
class Running:
    """One sequence: how far it is and where its memory is."""

    slot: int
    pages: list[int]
    computed: int = 0


class Driver:
    """Slots and pages are handed out in a random order; unwritten ones stay NaN and must never matter."""

    def __init__(
        self,
        decoder: Decoder,
        config: ModelConfig,
        *,
        page_tokens: int = 16,
        num_tokens: int = 1024,
        num_slots: int = 10,
        dtype: torch.dtype = torch.float32,
        seed: int = 0,
    ) -> None:
        num_pages = -(-num_tokens // page_tokens)
        self._decoder = decoder
        self.page_tokens = page_tokens
        self.cache = SequenceCache(
            config,
            num_pages=num_pages,
            page_tokens=page_tokens,
            num_slots=num_slots,
            device=CPU,
            dtype=dtype,
        )
        for part in (self.cache.keys, self.cache.values, self.cache.states, self.cache.columns):
            part.fill_(torch.nan)
        order = random.Random(seed)
        self.free_pages = order.sample(range(num_pages), num_pages)
        self.free_slots = order.sample(range(num_slots), num_slots)

    def start(self) -> Running:
        """A sequence with no tokens."""
        slot = self.free_slots.pop()
        self.cache.zero_slot(slot)
        return Running(slot, [])

    def finish(self, sequence: Running) -> None:
        """Give slot and pages back as they are, so that the next owner meets them dirty."""
        self.free_slots.insert(0, sequence.slot)
        self.free_pages[:0] = sequence.pages

    def run(self, *spans: tuple[Running, Sequence[int]], taps: Taps | None = None) -> list[Tensor]:
        """One pass that reads these tokens of these sequences; float32 [tokens, vocab] for each span."""
        for sequence, tokens in spans:
            missing = -(-(sequence.computed + len(tokens)) // self.page_tokens) - len(sequence.pages)
            sequence.pages += [self.free_pages.pop() for _ in range(missing)]
        logits = self._decoder.forward(batch_of(spans), self.cache, taps)
        for sequence, tokens in spans:
            sequence.computed += len(tokens)
        return list(logits.split_with_sizes([len(tokens) for _, tokens in spans]))


def batch_of(spans: Sequence[tuple[Running, Sequence[int]]]) -> PassBatch:
    """The pass over these spans, wanting the logits of every row."""
    lengths = torch.tensor([0, *(len(tokens) for _, tokens in spans)])
    positions = [
        torch.arange(sequence.computed, sequence.computed + len(tokens)) for sequence, tokens in spans
    ]
    # one entry more than any sequence needs, so that there is padding in every row
    width = 1 + max((len(sequence.pages) for sequence, _ in spans), default=0)
    tables = [sequence.pages + [-1] * (width - len(sequence.pages)) for sequence, _ in spans]
    return PassBatch(
        token_ids=torch.tensor([token for _, tokens in spans for token in tokens], dtype=torch.int64),
        positions=torch.cat((*positions, torch.zeros(0, dtype=torch.int64))).expand(3, -1),
        span_starts=lengths.cumsum(0),
        slots=torch.tensor([sequence.slot for sequence, _ in spans], dtype=torch.int64),
        contexts=torch.tensor([sequence.computed for sequence, _ in spans], dtype=torch.int64),
        page_tables=torch.tensor(tables, dtype=torch.int32).reshape(len(spans), width),
        logit_rows=torch.arange(int(lengths.sum())),
    )
