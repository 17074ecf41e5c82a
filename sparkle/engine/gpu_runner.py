"""Runs planned passes with the FP8 decoder: short spans by a graph, long ones as chunks of prompts.

Knows no jobs and no text. On a CPU it does the same without graphs.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from sparkle.engine.buckets import Bucket, buckets_for, smallest
from sparkle.engine.draw_state import DrawState
from sparkle.engine.plan import PassPlan, PassResult, Span
from sparkle.engine.prompt_pass import PromptPass, Reader
from sparkle.engine.rows import Rows, rows_of, wanted_rows
from sparkle.engine.sampler import Sampler
from sparkle.engine.transfer import pack, to_device
from sparkle.engine.verify_pass import Verifier, VerifyPass
from sparkle.model.fp8_batch import PromptBatch
from sparkle.model.fp8_cache import Fp8Cache


class Fp8Model(Verifier, Reader, Protocol):
    """What the runner needs of an FP8 decoder, besides `verify` and `read`."""

    def fold(self, slots: Tensor, accepted: Tensor, cache: Fp8Cache) -> None:
        """Empty the windows of these slots, int64 [S], into their states: of each the accepted tokens."""
        ...


class GpuRunner:
    """Owns the cache and the graphs. A fresh request's slot and pages are zeroed before the model sees them.

    The decoder keeps the tokens of a short span apart, in the slot's window, until it is told how many of
    them stay: all of them, or of a draft the rows that the drawn tokens follow.
    """

    def __init__(
        self,
        model: Fp8Model,
        cache: Fp8Cache,
        sampler: Sampler,
        *,
        num_slots: int,
        max_pages: int,
        widths: Sequence[int] = (1,),
        prompt_rows: Sequence[int] = (),
    ) -> None:
        """Captures a graph for each bucket of `widths`, which begin with 1, and for chunks of `prompt_rows`.

        `max_pages`: the most pages that one request holds. Spans wider than the widest of `widths` are read
        as prompts are.
        """
        assert 1 in widths, "every answer's next token must fit a graph"
        self.device = cache.keys.device
        self.draft_model: str | None = None
        self._model = model
        self._cache = cache
        self._sampler = sampler
        # one row a slot, written once a request
        self._page_tables = torch.full((num_slots, max_pages), -1, dtype=torch.int32, device=self.device)
        # of each slot's window: the tokens that stay
        self._kept = [0] * num_slots
        self._buckets = buckets_for(num_slots, widths)
        pool: Any = torch.cuda.graph_pool_handle() if self.device.type == "cuda" else None
        # the largest first: the smaller ones fit into its memory, and need no run in front
        self._passes = {
            bucket: VerifyPass(model, cache, bucket, max_pages, pool=pool, warm=place > 0)
            for place, bucket in enumerate(self._buckets)
        }
        self._prompt_passes = [
            PromptPass(model, cache, rows, max_pages, pool=pool, warm=place > 0)
            for place, rows in enumerate(sorted(prompt_rows, reverse=True))
        ]
        self.pass_ms: Mapping[Bucket, float] = {}

    def time_passes(self) -> None:
        """Fill in `pass_ms`. Due before the first pass: slots and pages are written, as by any request."""
        self.pass_ms = {bucket: self._timed_ms(bucket) for bucket in self._buckets}

    def keep(self, slot: int, tokens: int) -> None:
        """Of the slot's last span only the first `tokens` stay; due before its next span, which follows."""
        assert 0 <= tokens <= self._kept[slot], "more than were read"
        self._kept[slot] = tokens

    @torch.inference_mode()
    def run(self, plan: PassPlan, states: Mapping[str, DrawState]) -> PassResult:
        """Read every span's tokens and draw where the plan says so; `states` has those that draw."""
        for span in plan.spans:
            if span.fresh:
                self._clear(span)
        groups, long = self._split(plan.spans)
        # a graph's logits are its own until it runs again
        logits = [
            self._verify(spans) if len(groups) == 1 else self._verify(spans).clone() for spans in groups
        ]
        if long:
            logits.append(self._read(long))
        drawing = [span for spans in (*groups, long) for span in spans if span.draws]
        if not drawing:
            return PassResult(drawn=())
        result = self._sampler.draw(
            logits[0] if len(logits) == 1 else torch.cat(logits),
            [states[span.request] for span in drawing],
            [span.draft for span in drawing],
        )
        counts = Counter(drawn.request for drawn in result.drawn)
        for span in plan.spans:
            if span.draft:
                self.keep(span.slot, counts[span.request])
        return _in_order(plan, result)

    @torch.inference_mode()
    def _timed_ms(self, bucket: Bucket) -> float:
        """A pass of full drafts behind no context: what drafts add is about the same behind any."""
        spans = [self._trial_span(slot, bucket.width) for slot in range(bucket.sequences)]
        for span in spans:
            self._clear(span)
        self._verify(spans)
        # the second one finds drafts in the windows and the code in the caches, as any later one
        self._wait()
        started_s = time.perf_counter()
        self._verify(spans)
        self._wait()
        return 1000 * (time.perf_counter() - started_s)

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def _trial_span(self, slot: int, width: int) -> Span:
        num_pages, page_tokens = self._cache.keys.shape[1:3]
        pages = -(-width // page_tokens)
        return Span(
            request="",
            slot=slot,
            start=0,
            tokens=(0,) * width,
            # where there are too few some are written twice
            pages=tuple((slot * pages + place) % num_pages for place in range(pages)),
            draws=True,
            fresh=True,
            draft=(0,) * (width - 1),
        )

    def _clear(self, span: Span) -> None:
        self._cache.zero_slot(span.slot)
        self._cache.zero_pages(span.pages)
        self._kept[span.slot] = 0
        row = self._page_tables[span.slot]
        row.fill_(-1)
        row[: len(span.pages)] = to_device(span.pages, torch.int32, self.device)

    def _split(self, spans: Sequence[Span]) -> tuple[list[list[Span]], list[Span]]:
        """The spans for one graph, and the rest: those too long for any, then the longest, until it fits.

        Of the rest, drafts take further graphs: what of them is taken back must be in a window.
        """
        groups: list[list[Span]] = []
        rest: list[Span] = []
        left = sorted(spans, key=lambda span: len(span.tokens))
        while left:
            count = len(left)
            while count and self._bucket(left[:count]) is None:
                count -= 1
            if count:
                groups.append(left[:count])
            assert count or not any(span.draft for span in left), "a draft is wider than any graph"
            rest += [span for span in left[count:] if not span.draft]
            left = [span for span in left[count:] if span.draft]
        return groups, rest

    def _bucket(self, spans: Sequence[Span]) -> Bucket | None:
        width = max(len(span.tokens) for span in spans)
        return smallest(self._buckets, sequences=len(spans), width=width)

    def _verify(self, spans: Sequence[Span]) -> Tensor:
        """Logits of the rows that tokens are drawn behind."""
        bucket = self._bucket(spans)
        assert bucket is not None, "it was found when the spans were split"
        chosen = self._passes[bucket]
        rows = rows_of(spans, page_tokens=self._cache.page_tokens)
        chosen.fill(rows, accepted=[self._kept[span.slot] for span in spans])
        tables, slots = chosen.batch.page_tables, chosen.batch.slots
        torch.index_select(self._page_tables, 0, slots.clamp(min=0), out=tables)
        chosen.replay()
        for span in spans:
            self._kept[span.slot] = len(span.tokens)
        wanted = wanted_rows(spans, rows.span_starts)
        if wanted == list(range(len(wanted))):
            return chosen.logits[: len(wanted)]
        return chosen.logits[to_device(wanted, torch.int64, self.device)]

    def _read(self, spans: Sequence[Span]) -> Tensor:
        """Logits of the spans' last rows, where they draw; none has a draft."""
        self._fold([span.slot for span in spans if self._kept[span.slot]])
        rows = rows_of(spans, page_tokens=self._cache.page_tokens)
        wanted = wanted_rows(spans, rows.span_starts)
        # the smallest with room
        chosen = next((one for one in reversed(self._prompt_passes) if one.has_room(spans)), None)
        if chosen is None:
            lengths = tuple(len(span.tokens) for span in spans)
            return self._model.read(self._prompt_batch(rows, lengths, wanted), self._cache)
        chosen.fill(rows, wanted, self._page_tables)
        chosen.replay()
        return chosen.logits[: len(wanted)]

    def _prompt_batch(self, rows: Rows, lengths: tuple[int, ...], wanted: list[int]) -> PromptBatch:
        token_ids, positions, cells, span_starts, slots, logit_rows = pack(
            (rows.token_ids, rows.positions * 3, rows.cells, rows.span_starts, rows.slots, wanted),
            self.device,
        )
        # no wider than the longest sequence of this pass
        width = -(-(max(rows.positions) + 1) // self._cache.page_tokens)
        return PromptBatch(
            token_ids=token_ids,
            positions=positions.view(3, -1),
            cells=cells,
            span_starts=span_starts,
            slots=slots,
            page_tables=self._page_tables[:, :width].index_select(0, slots),
            logit_rows=logit_rows,
            contexts=tuple(rows.contexts),
            lengths=lengths,
        )

    def _fold(self, slots: Sequence[int]) -> None:
        if slots:
            numbers, kept = pack((slots, [self._kept[slot] for slot in slots]), self.device)
            self._model.fold(numbers, kept, self._cache)
            for slot in slots:
                self._kept[slot] = 0


def _in_order(plan: PassPlan, result: PassResult) -> PassResult:
    """The result with its requests as they stand in the plan."""
    places = {span.request: place for place, span in enumerate(plan.spans)}
    return PassResult(
        drawn=tuple(sorted(result.drawn, key=lambda drawn: places[drawn.request])),
        broken=tuple(sorted(result.broken, key=lambda request: places[request])),
    )
