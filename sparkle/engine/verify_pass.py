"""A verify pass of one shape, on a GPU as a CUDA graph: inputs stay where they are. Knows no requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from sparkle.engine.buckets import Bucket
from sparkle.engine.recorded import Recorded
from sparkle.engine.rows import Rows, rows_of
from sparkle.engine.transfer import Pack, padded
from sparkle.model.fp8_batch import VerifyBatch
from sparkle.model.fp8_cache import Fp8Cache


class Verifier(Protocol):
    """What a verify pass needs of a decoder."""

    def verify(self, batch: VerifyBatch, cache: Fp8Cache) -> Tensor:
        """Logits float32 [T, vocab] of all rows; on a GPU without waiting for it."""
        ...


class VerifyPass:
    """`fill` or write the tensors of `batch`, `replay`, read `logits`: of the last replay alone."""

    def __init__(
        self,
        decoder: Verifier,
        cache: Fp8Cache,
        bucket: Bucket,
        max_pages: int,
        *,
        pool: Any = None,
        warm: bool = False,
    ) -> None:
        """No place is used yet; `pool` and `warm` as `Recorded` takes them."""
        self.bucket = bucket
        device = cache.keys.device
        rows, sequences = bucket.rows, bucket.sequences
        self._pack = Pack((rows, 3 * rows, rows, sequences + 1, sequences, sequences, sequences), device)
        token_ids, positions, cells, span_starts, slots, contexts, accepted = self._pack.parts
        self.batch = VerifyBatch(
            token_ids=token_ids,
            positions=positions.view(3, rows),
            cells=cells,
            span_starts=span_starts,
            slots=slots,
            contexts=contexts,
            page_tables=torch.zeros(sequences, max_pages, dtype=torch.int32, device=device),
            accepted=accepted,
            width=bucket.width,
        )
        self.fill(rows_of((), page_tokens=cache.page_tokens), accepted=[])
        self._recorded = Recorded(lambda: decoder.verify(self.batch, cache), device, pool=pool, warm=warm)

    @property
    def logits(self) -> Tensor:
        """Float32 [T, vocab]; rows past the last span hold anything."""
        return self._recorded.logits

    def fill(self, rows: Rows, *, accepted: Sequence[int]) -> None:
        """These rows, and none in the other places; all of `batch` but the page tables."""
        count, places = self.bucket.rows, self.bucket.sequences
        positions = padded(rows.positions, count, 0)
        self._pack.fill(
            (
                padded(rows.token_ids, count, 0),
                positions * 3,
                padded(rows.cells, count, -1),
                padded(rows.span_starts, places + 1, rows.span_starts[-1]),
                padded(rows.slots, places, -1),
                padded(rows.contexts, places, 0),
                padded(accepted, places, 0),
            )
        )

    def replay(self) -> None:
        """Run the pass over what `batch` holds now."""
        self._recorded.replay()
