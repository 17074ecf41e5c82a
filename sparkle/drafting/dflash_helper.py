"""The DFlash2 model as a helper: which of the target's outputs it takes, and when. Knows no requests."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from sparkle.model.cache import SequenceCache
from sparkle.model.decoder import Decoder, PassBatch
from sparkle.model.dflash import DFlash
from sparkle.model.dflash_cache import ContextBatch, DFlashCache
from sparkle.model.dflash_config import DFlashConfig
from sparkle.model.dflash_selector import Draws
from sparkle.model.fp8_batch import PromptBatch, VerifyBatch
from sparkle.model.taps import Taps


class DFlashHelper:
    """A `Helper` but for the pass itself, which the two forms run in their own ways."""

    name = "dflash2"

    def __init__(self, model: DFlash, ring: DFlashCache) -> None:
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
