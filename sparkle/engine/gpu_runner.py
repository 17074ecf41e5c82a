"""Runs planned passes with the FP8 decoder: short spans by a graph, long ones as chunks of prompts.

Knows no jobs and no text. On a CPU it does the same without graphs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from sparkle.engine.buckets import Bucket
from sparkle.engine.draw_state import DrawState
from sparkle.engine.left_over import wipe_left_over
from sparkle.engine.plan import PassPlan, PassResult, Span, joined
from sparkle.engine.prompt_pass import PromptPass, Reader
from sparkle.engine.rows import Rows, following_rows, rows_of, wanted_rows
from sparkle.engine.sampler import Sampler
from sparkle.engine.short_spans import GivenCount, ShortSpans
from sparkle.engine.slot_upkeep import SlotUpkeep
from sparkle.engine.transfer import pack, padded
from sparkle.engine.verify_pass import DraftModel, Verifier
from sparkle.engine.windows import Windows
from sparkle.model.fp8_batch import PromptBatch
from sparkle.model.fp8_cache import Fp8Cache


class Fp8Model(Verifier, Reader, Protocol):
    """What the runner needs of an FP8 decoder, besides `verify` and `read`."""

    def fold(self, slots: Tensor, accepted: Tensor, cache: Fp8Cache) -> None:
        """Empty the windows of these slots, int64 [S], into their states: of each the accepted tokens."""
        ...


class GpuRunner:
    """Owns cache and graphs."""

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
        helper: DraftModel | None = None,
        given_count: GivenCount | None = None,
        buckets: Sequence[Bucket] | None = None,
    ) -> None:
        """Captures a graph for each bucket of `widths`, which begin with 1, and for chunks of `prompt_rows`.

        `num_slots` requests take part in a pass at most, `max_pages` is the most pages that one holds. Spans
        wider than the widest of `widths` are read as prompts are. `helper` fills in drafts of TO_GUESS. In
        measurements `given_count` stands in for comparing drafts, and `buckets` for those of `widths`.
        """
        self.device = cache.keys.device
        self.draft_model = None if helper is None else helper.name
        self._model = model
        self._helper = helper
        self._cache = cache
        self._sampler = sampler
        self.windows = Windows(cache.num_slots)
        self._upkeep = SlotUpkeep(
            cache,
            None if helper is None else helper.slot_state,
            max_pages=max_pages,
            windows=self.windows,
        )
        self._page_tables = self._upkeep.page_tables
        pool: Any = torch.cuda.graph_pool_handle() if self.device.type == "cuda" else None
        self._short = ShortSpans(
            model,
            cache,
            sampler,
            self.windows,
            self._page_tables,
            num_slots=num_slots,
            widths=widths,
            helper=helper,
            given_count=given_count,
            buckets=buckets,
            pool=pool,
        )
        self._pool = pool
        self._prompt_passes = [
            PromptPass(model, cache, rows, max_pages, helper=helper, pool=pool, warm=place > 0)
            for place, rows in enumerate(sorted(prompt_rows, reverse=True))
        ]
        self.pass_ms: Mapping[Bucket, float] = {}

    @torch.inference_mode()
    def time_passes(self) -> None:
        """Fill in `pass_ms`. Due before the first pass: slots and pages are written, and wiped again."""
        self.pass_ms = self._short.times_ms(self._upkeep)

    @torch.inference_mode()
    def run(self, plan: PassPlan, states: Mapping[str, DrawState]) -> PassResult:
        """Read every span's tokens and draw where the plan says so; `states` has those that draw."""
        self._upkeep.before(plan)
        groups, long = self._short.split(plan.spans)
        results = [self._short.run(spans, states) for spans in groups]
        if long:
            results.append(self._read(long, states))
        self._upkeep.after(plan)
        # of one graph in the plan's order nothing is to be put in order
        return results[0] if groups == [list(plan.spans)] else joined(plan.spans, *results)

    @torch.inference_mode()
    def forget(self) -> None:
        """See PassRunner; on a GPU every memory that no tensor holds is zeroed too."""
        self._short.forget()
        for one in self._prompt_passes:
            one.forget()
        self._sampler.forget()
        self._upkeep.forget()
        if self.device.type == "cuda":
            wipe_left_over(self._pool)

    def _read(self, spans: Sequence[Span], states: Mapping[str, DrawState]) -> PassResult:
        """Chunks of prompts, none with a draft."""
        self._fold([span.slot for span in spans if self.windows[span.slot]])
        rows = rows_of(spans, page_tokens=self._cache.page_tokens)
        wanted = wanted_rows(spans, rows.span_starts)
        # the smallest with room
        chosen = next((one for one in reversed(self._prompt_passes) if one.has_room(spans)), None)
        outputs: Tensor | None = None
        if chosen is not None:
            batch = chosen.batch
            chosen.fill(rows, wanted, self._page_tables)
            chosen.replay()
            logits, outputs = chosen.logits[: len(wanted)], chosen.outputs
        else:
            batch = self._prompt_batch(rows, tuple(len(span.tokens) for span in spans), wanted)
            if self._helper is None:
                logits = self._model.read(batch, self._cache)
            else:
                logits, outputs = self._helper.read(batch, self._cache)
        result = self._sampler.draw(logits, [states[span.request] for span in spans if span.draws])
        if outputs is not None:
            self._follow(spans, rows, batch, outputs, result)
        return result

    def _follow(
        self, spans: Sequence[Span], rows: Rows, batch: PromptBatch, outputs: Tensor, result: PassResult
    ) -> None:
        assert self._helper is not None, "the outputs are for it"
        drawn = {request: [one.token for one in tokens] for request, tokens in result.by_request.items()}
        known = [max(token, 0) for token in following_rows(spans, drawn)]
        lengths = [len(span.tokens) for span in spans]
        places = len(batch.slots)
        following, contexts, kept = pack(
            (
                padded(known, len(batch.token_ids), 0),
                padded(rows.contexts, places, 0),
                padded(lengths, places, 0),
            ),
            self.device,
        )
        self._helper.follow(batch, outputs, following, contexts=contexts, kept=kept)

    def _prompt_batch(self, rows: Rows, lengths: tuple[int, ...], wanted: list[int]) -> PromptBatch:
        token_ids, positions, cells, span_starts, slots, logit_rows = pack(
            (rows.token_ids, rows.positions * 3, rows.cells, rows.span_starts, rows.slots, wanted),
            self.device,
        )
        return PromptBatch(
            token_ids=token_ids,
            positions=positions.view(3, -1),
            cells=cells,
            span_starts=span_starts,
            slots=slots,
            page_tables=self._page_tables.index_select(0, slots),
            logit_rows=logit_rows,
            contexts=tuple(rows.contexts),
            lengths=lengths,
        )

    def _fold(self, slots: Sequence[int]) -> None:
        if slots:
            numbers, kept = pack((slots, [self.windows[slot] for slot in slots]), self.device)
            self._model.fold(numbers, kept, self._cache)
            for slot in slots:
                self.windows.empty(slot)
