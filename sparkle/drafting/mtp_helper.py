"""The checkpoint's own draft head as a helper: what it keeps between two passes. Knows no requests.

Its keys and values are in the decoder's pages. A chain begins with the head's output of the last row that was
kept: one row a slot.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor

from sparkle.model.cache import SequenceCache
from sparkle.model.decoder import Decoder, PassBatch
from sparkle.model.dflash_selector import Draws
from sparkle.model.fp8_batch import PromptBatch, VerifyBatch
from sparkle.model.fp8_cache import Fp8Cache
from sparkle.model.fp8_decoder import Fp8Decoder
from sparkle.model.fp8_mtp import Fp8Mtp
from sparkle.model.mtp import Mtp
from sparkle.model.mtp_chain import ChainStart

Batch = TypeVar("Batch", bound=PassBatch | VerifyBatch | PromptBatch)
Cache = TypeVar("Cache")
SomeBatch = TypeVar("SomeBatch", contravariant=True)
SomeCache = TypeVar("SomeCache", contravariant=True)


class Head(Protocol[SomeBatch, SomeCache]):
    """The draft head in one of its forms, see mtp.Mtp."""

    def follow(
        self, batch: SomeBatch, hidden: Tensor, cache: SomeCache, *, contexts: Tensor, kept: Tensor
    ) -> Tensor:
        """The head's output [S, hidden] of each span's last kept row, all having been read.

        Each row of `batch` has the token after its own.
        """
        ...

    def draft(self, start: ChainStart, cache: SomeCache, *, count: int) -> Tensor:
        """A chain behind each place: int64 [S, count]."""
        ...


class MtpHelper(Generic[Batch, Cache]):
    """A `Helper` but for the pass itself, which the two forms run in their own ways."""

    name = "mtp"

    def __init__(self, head: Head[Batch, Cache], cache: Cache, outputs: Tensor) -> None:
        """`outputs` [slots + 1, hidden] of the head's dtype; the last row takes what nobody keeps."""
        self._head = head
        self._cache = cache
        self._outputs = outputs

    def slot_state(self, slot: int) -> Sequence[Tensor]:
        """See Helper."""
        return (self._outputs[slot],)

    def propose(self, batch: PassBatch | VerifyBatch, *, count: int, draws: Draws | None) -> Tensor:
        """See Helper; always the likeliest tokens."""
        rows = batch.span_starts[:-1].clamp(max=batch.token_ids.shape[0] - 1)
        start = ChainStart(
            outputs=self._outputs.index_select(0, self._kept_at(batch.slots, batch.slots >= 0)),
            positions=batch.positions.index_select(1, rows) - 1,
            contexts=batch.contexts,
            page_tables=batch.page_tables,
        )
        return self._head.draft(start, self._cache, count=count)

    def follow(
        self, batch: Batch, outputs: Tensor, following: Tensor, *, contexts: Tensor, kept: Tensor
    ) -> None:
        """See Helper; `outputs` are the decoder's, after its final norm."""
        batch = dataclasses.replace(batch, token_ids=following)
        read = self._head.follow(batch, outputs, self._cache, contexts=contexts, kept=kept)
        places = self._kept_at(batch.slots, (batch.slots >= 0) & (kept > 0))
        self._outputs.index_copy_(0, places, read)

    def _kept_at(self, slots: Tensor, real: Tensor) -> Tensor:
        return torch.where(real, slots, self._outputs.shape[0] - 1)


class FloatMtpHelper(MtpHelper[PassBatch, SequenceCache]):
    """In float32, beside `decoder`."""

    def __init__(self, decoder: Decoder, head: Mtp, cache: SequenceCache, *, hidden_size: int) -> None:
        slots = cache.states.shape[1]
        outputs = torch.zeros(slots + 1, hidden_size, dtype=cache.keys.dtype, device=cache.keys.device)
        super().__init__(head, cache, outputs)
        self._decoder = decoder

    def forward(self, batch: PassBatch, cache: SequenceCache) -> tuple[Tensor, Tensor]:
        """The decoder's logits, see Decoder.forward, and the outputs for `follow`."""
        return self._decoder.forward_with_hidden(batch, cache)


class Fp8MtpHelper(MtpHelper[VerifyBatch | PromptBatch, Fp8Cache]):
    """In FP8, beside `decoder`."""

    def __init__(
        self, decoder: Fp8Decoder, head: Fp8Mtp, cache: Fp8Cache, *, num_slots: int, hidden_size: int
    ) -> None:
        outputs = torch.zeros(num_slots + 1, hidden_size, dtype=torch.bfloat16, device=cache.keys.device)
        super().__init__(head, cache, outputs)
        self._decoder = decoder

    def verify(self, batch: VerifyBatch, cache: Fp8Cache) -> tuple[Tensor, Tensor]:
        """The decoder's logits, see Fp8Decoder.verify, and the outputs for `follow`."""
        return self._decoder.verify_with_hidden(batch, cache)

    def read(self, batch: PromptBatch, cache: Fp8Cache) -> tuple[Tensor, Tensor]:
        """The decoder's logits, see Fp8Decoder.read, and the outputs for `follow`."""
        return self._decoder.read_with_hidden(batch, cache)
