"""Short chunks of prompts as one graph, whose time would be that of many launches. Knows no requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from sparkle.engine.plan import Span
from sparkle.engine.recorded import Recorded
from sparkle.engine.rows import Rows, pieces_of, rows_of
from sparkle.engine.transfer import Pack, padded
from sparkle.engine.verify_pass import DraftModel
from sparkle.model.fp8_batch import Pieces, PromptBatch
from sparkle.model.fp8_cache import Fp8Cache

SPANS = 4
"""Prompts of one such pass at most."""
WIDTH = 16
"""Rows of a piece: attention reads all keys before it once for each."""
MOST_READS = 1 << 21
"""Keys that all pieces of a pass may read: beyond, attention over whole chunks is worth its launches."""


class Reader(Protocol):
    """What such a pass needs of a decoder."""

    def read(self, batch: PromptBatch, cache: Fp8Cache) -> Tensor:
        """Logits float32 [R, vocab] of the wanted rows; with pieces, without waiting for the GPU."""
        ...


class PromptPass:
    """`fill`, `replay`, read `logits`: of the last replay alone."""

    def __init__(
        self,
        decoder: Reader,
        cache: Fp8Cache,
        rows: int,
        max_pages: int,
        *,
        helper: DraftModel | None = None,
        pool: Any = None,
        warm: bool = False,
    ) -> None:
        """Room for `rows` rows, none is used yet; `pool` and `warm` as `Recorded` takes them.

        A `helper` does not follow here: the token behind a prompt is drawn later.
        """
        self._rows = rows
        self._pieces = rows // WIDTH + SPANS
        device = cache.keys.device
        sizes = (rows, 3 * rows, rows, SPANS + 1, SPANS, SPANS, self._pieces + 1, self._pieces, self._pieces)
        self._pack = Pack(sizes, device)
        token_ids, positions, cells, span_starts, slots, logit_rows, starts, contexts, owners = (
            self._pack.parts
        )
        self._owners = owners
        self._tables = torch.zeros(self._pieces, max_pages, dtype=torch.int32, device=device)
        self.batch = PromptBatch(
            token_ids=token_ids,
            positions=positions.view(3, rows),
            cells=cells,
            span_starts=span_starts,
            slots=slots,
            page_tables=self._tables[:SPANS],
            logit_rows=logit_rows,
            contexts=(),
            lengths=(),
            pieces=Pieces(starts=starts, contexts=contexts, page_tables=self._tables, width=WIDTH),
        )
        self.fill(rows_of((), page_tokens=cache.page_tokens), [], self._tables)
        self._recorded = Recorded(
            lambda: (
                (decoder.read(self.batch, cache), None) if helper is None else helper.read(self.batch, cache)
            ),
            device,
            pool=pool,
            warm=warm,
        )

    def has_room(self, spans: Sequence[Span]) -> bool:
        """Whether these chunks fit, and are better read in pieces."""
        rows = sum(len(span.tokens) for span in spans)
        longest = max(span.start + len(span.tokens) for span in spans)
        return rows <= self._rows and len(spans) <= SPANS and self._pieces * longest <= MOST_READS

    @property
    def logits(self) -> Tensor:
        """Float32 [SPANS, vocab]: as many as were wanted, the rest holds anything."""
        return self._recorded.result[0]

    @property
    def outputs(self) -> Tensor | None:
        """What the draft model is to follow, where there is one."""
        return self._recorded.result[1]

    def fill(self, rows: Rows, logit_rows: Sequence[int], page_tables: Tensor) -> None:
        """These rows and wanted logits, none in the other places; page_tables int32 [slots, max_pages]."""
        pieces = pieces_of(rows, width=WIDTH)
        count, stop = self._rows, rows.span_starts[-1]
        self._pack.fill(
            (
                padded(rows.token_ids, count, 0),
                padded(rows.positions, count, 0) * 3,
                padded(rows.cells, count, -1),
                padded(rows.span_starts, SPANS + 1, stop),
                padded(rows.slots, SPANS, -1),
                padded(logit_rows, SPANS, 0),
                padded(pieces.starts, self._pieces + 1, stop),
                padded(pieces.contexts, self._pieces, 0),
                padded(pieces.slots, self._pieces, 0),
            )
        )
        self._tables.copy_(page_tables.index_select(0, self._owners))

    def replay(self) -> None:
        """Run the pass over what was filled in."""
        self._recorded.replay()

    def forget(self) -> None:
        """Overwrite what was filled in, and let go of what was computed."""
        self._pack.wipe()
        self._recorded.forget()
