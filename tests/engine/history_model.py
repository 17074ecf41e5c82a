"""A stand-in for the FP8 decoder that remembers tokens instead of numbers, and holds the runner to the rules.

It keeps of each slot what was read and what is in its window; in the cells it keeps token numbers. The next
token is a function of all tokens before it, found through the page table: a wrong slot, cell, page, position,
context or count of accepted tokens changes the answer, or fails at once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from sparkle.model.config import ModelConfig
from sparkle.model.fp8_batch import Pieces, PromptBatch, VerifyBatch
from sparkle.model.fp8_cache import Fp8Cache

BLANK = -1
"""What is in a cell that was wiped."""


def next_token(tokens: Sequence[int], vocab_size: int) -> int:
    """What follows `tokens`."""
    digest = hashlib.blake2s(repr(list(tokens)).encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") % vocab_size


def answer_to(prompt: Sequence[int], length: int, vocab_size: int) -> list[int]:
    """The answer of `length` tokens, one after another."""
    tokens = list(prompt)
    for _ in range(length):
        tokens.append(next_token(tokens, vocab_size))
    return tokens[len(prompt) :]


class TokenCache(Fp8Cache):
    """A token a cell, beside the pages; what is in a slot."""

    def __init__(self, config: ModelConfig, *, num_pages: int, page_tokens: int, num_slots: int) -> None:
        super().__init__(
            config,
            num_pages=num_pages,
            page_tokens=page_tokens,
            num_slots=num_slots,
            device=torch.device("cpu"),
        )
        self.cells = [BLANK] * (num_pages * page_tokens)
        self.read: list[list[int]] = [[]] * num_slots
        self.windows: list[list[int]] = [[]] * num_slots

    def zero_slot(self, slot: int) -> None:
        super().zero_slot(slot)
        self.read[slot], self.windows[slot] = [], []

    def copy_slot(self, source: int, target: int) -> None:
        super().copy_slot(source, target)
        self.read[target], self.windows[target] = list(self.read[source]), list(self.windows[source])

    def copy_page(self, source: int, target: int) -> None:
        super().copy_page(source, target)
        size = self.page_tokens
        self.cells[target * size : (target + 1) * size] = self.cells[source * size : (source + 1) * size]

    def zero_pages(self, pages: Sequence[int]) -> None:
        super().zero_pages(pages)
        for page in pages:
            start = page * self.page_tokens
            self.cells[start : start + self.page_tokens] = [BLANK] * self.page_tokens


class HistoryModel:
    """One logit of 10 a row, all others 0; rows that nobody may read are not finite."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self.verified: list[tuple[int, int, int]] = []
        """Of each verify pass: places, width, and places in use."""
        self.chunks: list[tuple[int, ...]] = []
        """Of each read of whole chunks: the lengths of its spans."""
        self.in_pieces: list[tuple[int, ...]] = []
        """Of each read in pieces: the same."""
        self.folds = 0
        self.broken_tokens: set[int] = set()
        """Behind these no logit is finite."""

    def verify(self, batch: VerifyBatch, cache: Fp8Cache) -> Tensor:
        assert isinstance(cache, TokenCache)
        places = len(batch.slots)
        starts = _ints(batch.span_starts)
        assert len(batch.token_ids) == places * batch.width
        assert starts[0] == 0
        assert all(0 <= end - start <= batch.width for start, end in pairwise(starts))
        assert _ints(batch.cells[starts[-1] :]) == [-1] * (len(batch.cells) - starts[-1])
        used = [slot for slot in _ints(batch.slots) if slot >= 0]
        assert len(set(used)) == len(used)
        self.verified.append((places, batch.width, len(used)))
        logits = torch.full((places * batch.width, self._vocab_size), float("nan"))
        for place, (slot, accepted) in enumerate(zip(_ints(batch.slots), _ints(batch.accepted), strict=True)):
            if slot < 0:
                assert starts[place] == starts[place + 1]
                continue
            assert accepted <= len(cache.windows[slot])
            cache.read[slot] = cache.read[slot] + cache.windows[slot][:accepted]
            rows = range(starts[place], starts[place + 1])
            cache.windows[slot] = [int(batch.token_ids[row]) for row in rows]
            context, table = int(batch.contexts[place]), batch.page_tables[place]
            self._step(cache, batch, rows, cache.read[slot], context, table, logits)
        return logits

    def read(self, batch: PromptBatch, cache: Fp8Cache) -> Tensor:
        assert isinstance(cache, TokenCache)
        starts = _ints(batch.span_starts)
        lengths = tuple(stop - start for start, stop in pairwise(starts))
        if batch.pieces is None:
            assert lengths == batch.lengths
            self.chunks.append(lengths)
        else:
            self.in_pieces.append(tuple(length for length in lengths if length))
        logits = torch.full((len(batch.token_ids), self._vocab_size), float("nan"))
        for place, slot in enumerate(_ints(batch.slots)):
            rows = range(starts[place], starts[place + 1])
            if batch.pieces is not None and not rows:
                assert slot == -1
                continue
            assert not cache.windows[slot], "the window was not folded in"
            before = cache.read[slot]
            if batch.pieces is None:
                self._step(
                    cache, batch, rows, before, batch.contexts[place], batch.page_tables[place], logits
                )
            else:
                self._step_in_pieces(cache, batch, batch.pieces, rows, before, logits)
            cache.read[slot] = cache.read[slot] + [int(batch.token_ids[row]) for row in rows]
        return logits[batch.logit_rows]

    def _step_in_pieces(
        self,
        cache: TokenCache,
        batch: PromptBatch,
        pieces: Pieces,
        rows: range,
        before: list[int],
        logits: Tensor,
    ) -> None:
        """The span's rows, which whole pieces must make up."""
        done: list[int] = []
        for piece, (start, stop) in enumerate(pairwise(_ints(pieces.starts))):
            if not rows.start <= start < stop <= rows.stop:
                assert stop <= rows.start or start >= rows.stop, "a piece goes across two spans"
                continue
            assert stop - start <= pieces.width
            read = [*before, *(int(batch.token_ids[row]) for row in done)]
            context, table = int(pieces.contexts[piece]), pieces.page_tables[piece]
            self._step(cache, batch, range(start, stop), read, context, table, logits)
            done += range(start, stop)
        assert done == list(rows), "rows are in no piece"

    def fold(self, slots: Tensor, accepted: Tensor, cache: Fp8Cache) -> None:
        assert isinstance(cache, TokenCache)
        self.folds += 1
        for slot, count in zip(_ints(slots), _ints(accepted), strict=True):
            assert 0 < count <= len(cache.windows[slot]), "there is nothing to fold in"
            cache.read[slot] = cache.read[slot] + cache.windows[slot][:count]
            cache.windows[slot] = []

    def _step(
        self,
        cache: TokenCache,
        batch: VerifyBatch | PromptBatch,
        rows: range,
        before: list[int],
        context: int,
        page_table: Tensor,
        logits: Tensor,
    ) -> None:
        assert context == len(before), "the context is not what was read and kept"
        table = _ints(page_table)
        for count, row in enumerate(rows):
            position = context + count
            assert _ints(batch.positions[:, row]) == [position] * 3
            cell = int(batch.cells[row])
            assert cell == self._cell(cache, table, position), "the row goes to another cell than is read"
            cache.cells[cell] = int(batch.token_ids[row])
            tokens = [cache.cells[self._cell(cache, table, past)] for past in range(position + 1)]
            # attention and the recurrent state see the same tokens
            assert tokens[:context] == before
            logits[row] = 0.0
            logits[row, next_token(tokens, self._vocab_size)] = 10.0
            if tokens[-1] in self.broken_tokens:
                logits[row, 0] = float("inf")

    @staticmethod
    def _cell(cache: TokenCache, table: list[int], position: int) -> int:
        page = table[position // cache.page_tokens]
        assert page >= 0
        return page * cache.page_tokens + position % cache.page_tokens


def _ints(values: Tensor) -> list[int]:
    return [int(value) for value in values]
