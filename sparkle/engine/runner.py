"""Runs one planned pass in float32: plan to tensors, through the model, to tokens. Knows no jobs, no text."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Protocol

import torch
from torch import Tensor

from sparkle.drafting.helper import Helper
from sparkle.engine.buckets import Bucket
from sparkle.engine.draw_state import DrawState
from sparkle.engine.plan import PassPlan, PassResult, Span
from sparkle.engine.rows import following_rows, kept_rows, rows_of, wanted_rows
from sparkle.engine.sampler import Sampler
from sparkle.engine.slot_upkeep import SlotUpkeep
from sparkle.model.cache import SequenceCache
from sparkle.model.decoder import PassBatch
from sparkle.model.dflash_selector import Draws


class Model(Protocol):
    """What the runner needs of a decoder."""

    def forward(self, batch: PassBatch, cache: SequenceCache) -> Tensor:
        """Logits float32 [R, padded vocab] of the wanted rows; the cache is moved on in place."""
        ...


class DraftModel(Helper[PassBatch, PassBatch], Protocol):
    """What the runner needs of a draft model beside the decoder."""

    def forward(self, batch: PassBatch, cache: SequenceCache) -> tuple[Tensor, Tensor]:
        """The decoder's logits, as Model.forward, and the outputs for `follow`."""
        ...


class Runner:
    """Owns the cache.

    Where the model does not agree with a whole draft, the slot goes back to what it was in front of the span,
    and the rows that stay are read again.
    """

    def __init__(
        self,
        model: Model,
        cache: SequenceCache,
        sampler: Sampler,
        *,
        max_pages: int,
        helper: DraftModel | None = None,
    ) -> None:
        """`max_pages`: the most pages that one request holds; `helper` fills in drafts of TO_GUESS."""
        self.device = torch.device("cpu")
        self.draft_model = None if helper is None else helper.name
        # a pass is slow here: measuring each shape of one would keep the start waiting
        self.pass_ms: Mapping[Bucket, float] = {}
        self._model = model
        self._helper = helper
        self._cache = cache
        self._sampler = sampler
        self._upkeep = SlotUpkeep(cache, None if helper is None else helper.slot_state, max_pages=max_pages)

    @torch.inference_mode()
    def run(self, plan: PassPlan, states: Mapping[str, DrawState]) -> PassResult:
        """Read every span's tokens and draw where the plan says so; `states` has those that draw."""
        self._upkeep.before(plan)
        result = self._pass(plan, states) if plan.spans else PassResult(drawn=())
        self._upkeep.after(plan)
        return result

    @torch.inference_mode()
    def forget(self) -> None:
        """See PassRunner; what a pass computes is given back with it."""
        self._sampler.forget()
        self._upkeep.forget()

    def _pass(self, plan: PassPlan, states: Mapping[str, DrawState]) -> PassResult:
        guessed = dict(self._guess([span for span in plan.spans if span.guesses], states))
        spans = [
            span.with_draft(guessed[span.request]) if span.request in guessed else span for span in plan.spans
        ]
        drawing = [span for span in spans if span.draws]
        drafted = [span for span in spans if span.draft]
        saved = self._cache.save([span.slot for span in drafted])
        batch = self._batch(spans)
        logits, outputs = self._forward(batch)
        result = self._sampler.draw(
            logits, [states[span.request] for span in drawing], [span.draft for span in drawing]
        )
        drawn = {request: [one.token for one in tokens] for request, tokens in result.by_request.items()}
        again = _rows_that_stay(drafted, drawn)
        if again:
            self._cache.restore(saved, [span.slot for span in again])
            self._model.forward(self._batch(again), self._cache)
        if self._helper is not None and outputs is not None:
            self._helper.follow(
                batch,
                outputs,
                torch.tensor(following_rows(spans, drawn)).clamp(min=0),
                contexts=batch.contexts,
                kept=torch.tensor(kept_rows(spans, drawn)),
            )
        return dataclasses.replace(result, guessed=guessed)

    def _guess(
        self, spans: Sequence[Span], states: Mapping[str, DrawState]
    ) -> Iterator[tuple[str, tuple[int, ...]]]:
        """The helper's drafts by request, as far as a shape allows them; those of one width at once: a chain
        must not leave its pages."""
        for count, group in groupby(sorted(spans, key=_guesses), key=_guesses):
            assert self._helper is not None, "the runner has no draft model"
            alike = list(group)
            draws = _draws([states[span.request] for span in alike], count)
            tokens = self._helper.propose(self._batch(alike), count=count, draws=draws)
            # padding of the vocabulary is never drawn, and no place of a penalty's counts
            for span, row in zip(alike, tokens.clamp(max=self._sampler.vocab_size - 1), strict=True):
                yield span.request, states[span.request].cut(tuple(int(token) for token in row))

    def _forward(self, batch: PassBatch) -> tuple[Tensor, Tensor | None]:
        if self._helper is None:
            return self._model.forward(batch, self._cache), None
        return self._helper.forward(batch, self._cache)

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
            page_tables=self._upkeep.page_tables[slots, :width],
            logit_rows=torch.tensor(wanted_rows(spans, rows.span_starts), dtype=torch.int64),
        )


def _guesses(span: Span) -> int:
    return span.guesses


def _draws(states: Sequence[DrawState], count: int) -> Draws:
    return Draws(
        temperatures=torch.tensor([state.sampling.temperature for state in states], dtype=torch.float64),
        chances=torch.tensor(
            [[state.chance(ahead) for ahead in range(count)] for state in states], dtype=torch.float64
        ),
    )


def _rows_that_stay(drafted: Sequence[Span], drawn: Mapping[str, Sequence[int]]) -> list[Span]:
    """Of spans whose drafts were cut short, the rows to read again; a broken one has none."""
    return [
        dataclasses.replace(span, tokens=span.tokens[:count], draws=False, draft=())
        for span in drafted
        if 0 < (count := len(drawn.get(span.request, ()))) < len(span.tokens)
    ]
