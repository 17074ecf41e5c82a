"""Runs one planned pass in float32: plan to tensors, through the model, to tokens. Knows no jobs, no text."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from sparkle.engine.draw_state import DrawState
from sparkle.engine.plan import PassPlan, PassResult, Span
from sparkle.engine.rows import rows_of, wanted_rows
from sparkle.engine.sampler import Sampler
from sparkle.model.cache import SequenceCache
from sparkle.model.decoder import PassBatch


class Model(Protocol):
    """What the runner needs of a decoder."""

    def forward(self, batch: PassBatch, cache: SequenceCache) -> Tensor:
        """Logits float32 [R, padded vocab] of the wanted rows; the cache is moved on in place."""
        ...


class Runner:
    """Owns the cache. A fresh request's slot and pages are zeroed before the model sees them.

    Where the model does not agree with a whole draft, the slot goes back to what it was in front of the span,
    and the rows that stay are read again.
    """

    def __init__(
        self, model: Model, cache: SequenceCache, sampler: Sampler, *, num_slots: int, max_pages: int
    ) -> None:
        """`max_pages`: the most pages that one request holds."""
        self.device = torch.device("cpu")
        self._model = model
        self._cache = cache
        self._sampler = sampler
        # one row a slot, written once a request: a pass then only picks rows
        self._page_tables = torch.full((num_slots, max_pages), -1, dtype=torch.int32)

    def run(self, plan: PassPlan, states: Mapping[str, DrawState]) -> PassResult:
        """Read every span's tokens and draw where the plan says so; `states` has those that draw."""
        for span in plan.spans:
            if span.fresh:
                self._cache.zero_slot(span.slot)
                self._cache.zero_pages(span.pages)
                row = self._page_tables[span.slot]
                row.fill_(-1)
                row[: len(span.pages)] = torch.tensor(span.pages, dtype=torch.int32)
        drafted = [span for span in plan.spans if span.draft]
        drawing = [span for span in plan.spans if span.draws]
        with torch.inference_mode():
            saved = self._cache.save([span.slot for span in drafted])
            logits = self._model.forward(self._batch(plan.spans), self._cache)
            result = self._sampler.draw(
                logits, [states[span.request] for span in drawing], [span.draft for span in drawing]
            )
            again = _rows_that_stay(drafted, result)
            if again:
                self._cache.restore(saved, [span.slot for span in again])
                self._model.forward(self._batch(again), self._cache)
        return result

    def _batch(self, spans: Sequence[Span]) -> PassBatch:
        rows = rows_of(spans, page_tokens=self._cache.page_tokens)
        slots = torch.tensor(rows.slots)
        # no wider than the longest sequence of this pass
        width = -(-(max(rows.positions) + 1) // self._cache.page_tokens)
        return PassBatch(
            token_ids=torch.tensor(rows.token_ids),
            positions=torch.tensor(rows.positions).repeat(3, 1),
            span_starts=torch.tensor(rows.span_starts),
            slots=slots,
            contexts=torch.tensor(rows.contexts),
            page_tables=self._page_tables[slots, :width],
            logit_rows=torch.tensor(wanted_rows(spans, rows.span_starts), dtype=torch.int64),
        )


def _rows_that_stay(drafted: Sequence[Span], result: PassResult) -> list[Span]:
    """Of spans whose drafts were cut short, the rows to read again; a broken one has none."""
    counts = Counter(drawn.request for drawn in result.drawn)
    return [
        dataclasses.replace(span, tokens=span.tokens[:count], draws=False, draft=())
        for span in drafted
        if 0 < (count := counts[span.request]) < len(span.tokens)
    ]
