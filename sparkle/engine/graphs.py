"""A verify pass of one shape, on a GPU as a CUDA graph: inputs stay where they are. Knows no requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from sparkle.engine.buckets import Bucket
from sparkle.engine.rows import Rows
from sparkle.engine.transfer import Pack
from sparkle.model.fp8_batch import VerifyBatch
from sparkle.model.fp8_cache import Fp8Cache


class Verifier(Protocol):
    """What a verify pass needs of a decoder."""

    def verify(self, batch: VerifyBatch, cache: Fp8Cache) -> Tensor:
        """Logits float32 [T, vocab] of all rows; on a GPU without waiting for it."""
        ...


class VerifyPass:
    """`fill` or write the tensors of `batch`, `replay`, read `logits`: of the last replay alone."""

    def __init__(self, decoder: Verifier, cache: Fp8Cache, bucket: Bucket, max_pages: int) -> None:
        """No place is used yet."""
        self.bucket = bucket
        self._decoder = decoder
        self._cache = cache
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
        self._graph: Any = None
        self._logits: Tensor | None = None
        self.fill(
            Rows(token_ids=[], positions=[], cells=[], span_starts=[0], slots=[], contexts=[]), accepted=[]
        )

    @property
    def logits(self) -> Tensor:
        """Float32 [T, vocab]; rows past the last span hold anything."""
        assert self._logits is not None, "nothing was replayed"
        return self._logits

    def fill(self, rows: Rows, *, accepted: Sequence[int]) -> None:
        """These rows, and none in the other places; all of `batch` but the page tables."""
        count, places = self.bucket.rows, self.bucket.sequences
        positions = _padded(rows.positions, count, 0)
        self._pack.fill(
            (
                _padded(rows.token_ids, count, 0),
                positions * 3,
                _padded(rows.cells, count, -1),
                _padded(rows.span_starts, places + 1, rows.span_starts[-1]),
                _padded(rows.slots, places, -1),
                _padded(rows.contexts, places, 0),
                _padded(accepted, places, 0),
            )
        )

    def replay(self) -> None:
        """Run the pass over what `batch` holds now."""
        if self._graph is not None:
            self._graph.replay()
        else:
            self._logits = self._decoder.verify(self.batch, self._cache)

    def record(self, pool: Any) -> None:
        """From now on `replay` is one launch; its memory is in `pool`, which other graphs may share."""
        # kernels are compiled and libraries make their handles now: neither is possible while recording
        aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch has no types for its streams
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            self._decoder.verify(self.batch, self._cache)
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        # other threads may use the GPU meanwhile
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            self._logits = self._decoder.verify(self.batch, self._cache)
        self._graph = graph


def capture(
    decoder: Verifier, cache: Fp8Cache, sequences: int, width: int, max_pages: int, *, pool: Any = None
) -> VerifyPass:
    """The pass of `sequences` places of `width` rows, on the cache's device; on a GPU recorded.

    `pool`: of torch.cuda.graph_pool_handle. Passes that share one must not run side by side.
    """
    made = VerifyPass(decoder, cache, Bucket(sequences, width), max_pages)
    if cache.keys.device.type == "cuda":
        made.record(pool)
    return made


def _padded(values: Sequence[int], length: int, filler: int) -> list[int]:
    return [*values, *[filler] * (length - len(values))]
