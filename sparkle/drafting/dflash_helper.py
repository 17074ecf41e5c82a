"""The DFlash2 model as a helper: which of the target's outputs it takes, and when. Knows no requests."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from sparkle.model.cache import SequenceCache
from sparkle.model.decoder import Decoder, PassBatch
from sparkle.model.dflash import DFlash
from sparkle.model.dflash_cache import ContextBatch, DFlashCache
from sparkle.model.dflash_config import DFlashConfig
from sparkle.model.dflash_selector import Draws
from sparkle.model.fp8_batch import PromptBatch, VerifyBatch
from sparkle.model.fp8_cache import Fp8Cache
from sparkle.model.fp8_decoder import Fp8Decoder
from sparkle.model.fp8_dflash import Fp8DFlash
from sparkle.model.taps import Taps


class DFlashHelper:
    """A `Helper` but for the pass itself, which the two forms run in their own ways."""

    name = "dflash2"

    def __init__(self, model: DFlash | Fp8DFlash, ring: DFlashCache) -> None:
        self._model = model
        self._ring = ring

    def slot_state(self, slot: int) -> Sequence[Tensor]:
        """See Helper."""
        return self._ring.keys[:, slot], self._ring.values[:, slot]

    def propose(self, batch: PassBatch | VerifyBatch, *, count: int, draws: Draws | None) -> Tensor:
        """See Helper."""
        rows = batch.span_starts[:-1].clamp(max=batch.token_ids.shape[0] - 1)
        anchors = batch.token_ids.index_select(0, rows)
        return self._model.propose(
            anchors, batch.slots, batch.contexts, self._ring, rows=1 + count, draws=draws
        )

    def follow(
        self,
        batch: PassBatch | VerifyBatch | PromptBatch,
        outputs: Tensor,
        following: Tensor,
        *,
        contexts: Tensor,
        kept: Tensor,
    ) -> None:
        """See Helper; what follows a row is not looked at."""
        rows = ContextBatch(span_starts=batch.span_starts, slots=batch.slots, contexts=contexts, kept=kept)
        self._model.extend(outputs, rows, self._ring)


class FloatDFlashHelper(DFlashHelper):
    """In float32, beside `decoder`."""

    def __init__(self, decoder: Decoder, model: DFlash, config: DFlashConfig, ring: DFlashCache) -> None:
        super().__init__(model, ring)
        self._decoder = decoder
        self._layers = config.target_layers

    def forward(self, batch: PassBatch, cache: SequenceCache) -> tuple[Tensor, Tensor]:
        """The decoder's logits, see Decoder.forward, and the outputs for `follow`."""
        taps = Taps(self._layers)
        logits = self._decoder.forward(batch, cache, taps)
        return logits, taps.outputs


class Fp8DFlashHelper(DFlashHelper):
    """In FP8, beside `decoder`."""

    def __init__(
        self, decoder: Fp8Decoder, model: DFlash | Fp8DFlash, config: DFlashConfig, ring: DFlashCache
    ) -> None:
        super().__init__(model, ring)
        self._decoder = decoder
        self._layers = config.target_layers
        self._window = config.window

    def verify(self, batch: VerifyBatch, cache: Fp8Cache) -> tuple[Tensor, Tensor]:
        """The decoder's logits, see Fp8Decoder.verify, and the outputs for `follow`."""
        taps = Taps(self._layers)
        logits = self._decoder.verify(batch, cache, taps)
        return logits, taps.outputs

    def read(self, batch: PromptBatch, cache: Fp8Cache) -> tuple[Tensor, Tensor]:
        """The decoder's logits, see Fp8Decoder.read, and the outputs for `follow`.

        Of a chunk that is longer than the window these are the newest rows': the ring has no place for more.
        """
        rows = self._newest_rows(batch) if self._is_long(batch) else None
        taps = Taps(self._layers, rows)
        logits = self._decoder.read(batch, cache, taps)
        return logits, taps.outputs

    def follow(
        self,
        batch: PassBatch | VerifyBatch | PromptBatch,
        outputs: Tensor,
        following: Tensor,
        *,
        contexts: Tensor,
        kept: Tensor,
    ) -> None:
        """See Helper; what follows a row is not looked at."""
        if isinstance(batch, PromptBatch) and self._is_long(batch):
            newest = kept.clamp(max=self._window)
            batch = dataclasses.replace(batch, span_starts=_starts(newest))
            contexts, kept = contexts + kept - newest, newest
        super().follow(batch, outputs, following, contexts=contexts, kept=kept)

    def _is_long(self, batch: PromptBatch) -> bool:
        """Whether any chunk is longer than the window; those of graphs, which tell no lengths, are not."""
        return max(batch.lengths, default=0) > self._window

    def _newest_rows(self, batch: PromptBatch) -> Tensor:
        """Of each chunk the last rows, int64 [N]."""
        starts = _starts(batch.span_starts.diff().clamp(max=self._window))
        total = sum(min(length, self._window) for length in batch.lengths)
        places = torch.arange(total, device=starts.device)
        span = torch.searchsorted(starts[1:], places, right=True)
        return places + (batch.span_starts - starts)[1:][span]


def _starts(lengths: Tensor) -> Tensor:
    """Where spans of these lengths begin, and the last one ends: int64 [S+1]."""
    return F.pad(lengths.cumsum(0), (1, 0))
