"""Short spans by graphs: which one they take, what it is given, what came of it. Knows no long prompts."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import is_
from typing import Any

import torch
from torch import Tensor

from sparkle.engine.bucket_times import times_ms
from sparkle.engine.buckets import Bucket, graphs_for, smallest
from sparkle.engine.draw_state import DrawState
from sparkle.engine.drawn_rows import NONE_DRAWN, drawn_on_device, drawn_rows
from sparkle.engine.plan import MAX_DRAFT_TOKENS, TO_GUESS, Drawn, PassResult, Span, joined
from sparkle.engine.rows import Rows, following_rows, kept_rows, rows_of
from sparkle.engine.sampler import Sampler
from sparkle.engine.shape_masks import NO_MASK, RowMasks
from sparkle.engine.slot_upkeep import SlotUpkeep
from sparkle.engine.transfer import pack, padded, to_device
from sparkle.engine.verify_pass import Checked, DraftModel, Verifier, VerifyPass
from sparkle.engine.windows import Windows
from sparkle.model.fp8_cache import Fp8Cache
from sparkle.schemas.job import Sampling

LOOK_AHEAD = 2 * (1 + MAX_DRAFT_TOKENS)
"""Uniform numbers: of the tokens that a pass writes at most, and of the next one."""
GivenCount = Callable[[Span], int]
"""For measurements with random weights: how many tokens count of those drawn for a span, at least one."""


class ShortSpans:
    """Owns the graphs of verify passes.

    The decoder keeps the tokens of a short span apart, in the slot's window, until it is told how many of
    them stay: all of them, or of a draft the rows that the drawn tokens follow.
    """

    def __init__(
        self,
        decoder: Verifier,
        cache: Fp8Cache,
        sampler: Sampler,
        windows: Windows,
        page_tables: Tensor,
        *,
        num_slots: int,
        widths: Sequence[int],
        helper: DraftModel | None,
        given_count: GivenCount | None,
        buckets: Sequence[Bucket] | None,
        pool: Any,
    ) -> None:
        """Captures a graph for each bucket of `widths`, and with a `helper` for those with guesses.

        page_tables int32 [slots, max_pages], as the runner writes them; `num_slots` of them are in a pass at
        most. `buckets` in place of all these where only some are needed; `pool` as `Recorded` takes it.
        """
        assert 1 in widths, "every answer's next token must fit a graph"
        self._sampler = sampler
        self._windows = windows
        self._page_tables = page_tables
        self._num_pages, self._page_tokens = cache.keys.shape[1:3]
        self._helped = helper is not None
        # where nothing is ever guessed the sampler draws behind the graph: inside it is not measured
        self._draws = self._helped or len(widths) > 1
        self._given_count = given_count
        self._buckets = buckets or graphs_for(num_slots, widths, guesses=helper is not None)
        self._found: dict[tuple[int, int, bool], Bucket | None] = {}
        self._passes: dict[Bucket, VerifyPass] = {}
        # the largest first: the smaller ones fit into its memory, and need no run in front
        for bucket in self._buckets:
            warm = any(one.guesses == bucket.guesses for one in self._passes)
            self._passes[bucket] = VerifyPass(
                decoder,
                cache,
                bucket,
                page_tables,
                vocab_size=sampler.vocab_size,
                draws=self._draws,
                helper=helper,
                pool=pool,
                warm=warm,
            )

    def split(self, spans: Sequence[Span]) -> tuple[list[list[Span]], list[Span]]:
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

    def run(self, spans: Sequence[Span], states: Mapping[str, DrawState]) -> PassResult:
        """Read, draw and keep what stays; the spans fit one graph. The result is in their order."""
        bucket = self._bucket(spans)
        assert bucket is not None, "it was found when the spans were split"
        chosen = self._passes[bucket]
        rows = rows_of(spans, page_tokens=self._page_tokens)
        self._fill(chosen, spans, rows, states)
        chosen.check()
        shaped = self._draws and any(
            span.draws
            and states[span.request].shape is not None
            and self._drawn_on_device(states[span.request])
            for span in spans
        )
        if not shaped:
            chosen.draw()
        for span in spans:
            if self._draws and span.draws:
                # what the next pass may ask for, while the device computes
                states[span.request].look_ahead(LOOK_AHEAD)
        masks = self._masks(chosen, spans, rows, states)
        if shaped:
            assert masks is not None, "some have a shape"
            chosen.rule_out(masks.of(self._masks_of_rows(bucket, spans, rows, states)))
            chosen.draw()
        checked = chosen.read()
        guessed = _guessed(spans, rows, checked)
        spans = [
            span.with_draft(guessed[span.request]) if span.request in guessed else span for span in spans
        ]
        drawing = [
            _Drawing(span, states[span.request], stop - 1 - len(span.draft), count)
            for span, stop, count in zip(spans, rows.span_starts[1:], checked.counts, strict=False)
            if span.draws
        ]
        return dataclasses.replace(self._kept(chosen, spans, drawing, checked, masks), guessed=guessed)

    def _kept(
        self,
        chosen: VerifyPass,
        spans: Sequence[Span],
        drawing: Sequence[_Drawing],
        checked: Checked,
        masks: RowMasks | None,
    ) -> PassResult:
        """What the graph drew, with what it left to be drawn, is kept, and followed where it is not yet."""
        done, left, anew = list[_Drawing](), list[_Drawing](), list[_Drawing]()
        places = list[int]()
        place = 0
        for one in drawing:
            if not self._drawn_on_device(one.state):
                left.append(one)
                places += range(place, place + len(one.rows))
            else:
                settled = one.settled(checked.tokens)
                (anew if settled is None else done).append(settled or one)
            place += len(one.rows)
        result = _taken(done, checked.tokens)
        if left:
            own = None if masks is None else masks.of(places)
            result = joined(spans, result, self._draw(left, chosen.logits, own))
        if anew:
            # their masks are others now, for which those of the pass are given up
            result = joined(spans, result, self._draw(anew, chosen.logits, None))
        drawn = {request: [one.token for one in tokens] for request, tokens in result.by_request.items()}
        kept = kept_rows(spans, drawn)
        for span, count in zip(spans, kept, strict=True):
            self._windows.keep(span.slot, count)
        as_told = len(done) == len(drawing) and all(map(is_, done, drawing))
        if self._helped and not as_told:
            _follow_again(chosen, following_rows(spans, drawn), kept)
        return result

    def forget(self) -> None:
        """Overwrite what the graphs were given, and let go of what they computed."""
        for one in self._passes.values():
            one.forget()

    def times_ms(self, upkeep: SlotUpkeep) -> dict[Bucket, float]:
        """What a pass of each bucket takes, with full drafts behind no context: they add as much behind any.

        Slots and pages are any, and wiped afterwards.
        """
        return times_ms(self._buckets, lambda bucket: self._time_ms(bucket, upkeep))

    def _time_ms(self, bucket: Bucket, upkeep: SlotUpkeep) -> float:
        chosen, device = self._passes[bucket], self._page_tables.device
        spans = trial_spans(bucket, num_pages=self._num_pages, page_tokens=self._page_tokens)
        state = DrawState("", Sampling(), 0, (), self._sampler.vocab_size, device)
        rows = rows_of(spans, page_tokens=self._page_tokens)
        for span in spans:
            upkeep.place(span)
        started_s = 0.0
        # the second one finds drafts in the windows and the code in the caches, as any later one
        for _ in range(2):
            started_s = time.perf_counter()
            self._fill(chosen, spans, rows, {span.request: state for span in spans})
            chosen.replay()
            if device.type == "cuda":
                torch.cuda.synchronize()
        took_ms = 1000 * (time.perf_counter() - started_s)
        pages = sorted({page for span in spans for page in span.pages})
        upkeep.wipe([span.slot for span in spans], pages)
        return took_ms

    def _bucket(self, spans: Sequence[Span]) -> Bucket | None:
        sequences, width = len(spans), max(len(span.tokens) for span in spans)
        shape = sequences, width, any(span.guesses for span in spans)
        # looked up several times a pass
        if shape not in self._found:
            self._found[shape] = smallest(self._buckets, sequences=sequences, width=width, guesses=shape[2])
        return self._found[shape]

    def _fill(
        self, chosen: VerifyPass, spans: Sequence[Span], rows: Rows, states: Mapping[str, DrawState]
    ) -> None:
        given = self._given_count
        chosen.fill(
            rows,
            drawn_rows(spans, rows.span_starts, states, vocab_size=self._sampler.vocab_size)
            if self._draws
            else NONE_DRAWN,
            following_rows(spans, {}),
            accepted=[self._windows[span.slot] for span in spans],
            least=[] if given is None else [given(span) if span.draft else 0 for span in spans],
        )
        for span in spans:
            self._windows.fill(span.slot, len(span.tokens))

    def _drawn_on_device(self, state: DrawState) -> bool:
        return self._draws and drawn_on_device(state, self._sampler.vocab_size)

    def _masks(
        self, chosen: VerifyPass, spans: Sequence[Span], rows: Rows, states: Mapping[str, DrawState]
    ) -> RowMasks | None:
        """Of the rows that are drawn behind, made while they are checked: of guesses once they are made."""
        drawing = [(span, start) for span, start in zip(spans, rows.span_starts, strict=False) if span.draws]
        shaped_guesses = any(span.guesses and states[span.request].shape for span, _ in drawing)
        known = chosen.read_guesses() if shaped_guesses else rows.token_ids
        return self._sampler.masks(
            [states[span.request] for span, _ in drawing],
            [
                known[start + len(span.tokens) - len(span.draft) : start + len(span.tokens)]
                for span, start in drawing
            ],
        )

    def _masks_of_rows(
        self, bucket: Bucket, spans: Sequence[Span], rows: Rows, states: Mapping[str, DrawState]
    ) -> list[int]:
        """Of each row of the graph the place of its mask; of those that it does not draw behind NO_MASK."""
        found = [NO_MASK] * bucket.rows
        place = 0
        for span, stop in zip(spans, rows.span_starts[1:], strict=True):
            count = 1 + len(span.draft) if span.draws else 0
            if count and self._drawn_on_device(states[span.request]):
                found[stop - count : stop] = range(place, place + count)
            place += count
        return found

    def _draw(self, left: Sequence[_Drawing], logits: Tensor, masks: RowMasks | None) -> PassResult:
        """What the graph left to be drawn."""
        wanted = [row for one in left for row in one.rows]
        # the first rows of the graph's need no copy
        in_order = wanted == list(range(len(wanted)))
        return self._sampler.draw(
            logits[: len(wanted)] if in_order else logits[to_device(wanted, torch.int64, logits.device)],
            [one.state for one in left],
            [one.span.draft for one in left],
            masks,
        )


def trial_spans(bucket: Bucket, *, num_pages: int, page_tokens: int) -> list[Span]:
    """Fresh requests that fill a bucket with drafts; where there are too few pages some are written twice."""
    pages = -(-bucket.width // page_tokens)
    draft = (TO_GUESS if bucket.guesses else 0,) * (bucket.width - 1)
    return [
        Span(
            request=str(slot),
            slot=slot,
            start=0,
            tokens=(0, *draft),
            pages=tuple((slot * pages + place) % num_pages for place in range(pages)),
            draws=True,
            fresh=True,
            draft=draft,
        )
        for slot in range(bucket.sequences)
    ]


@dataclass(frozen=True, slots=True)
class _Drawing:
    """A span that draws, and where in the pass."""

    span: Span
    state: DrawState
    first: int
    """The first row that is drawn behind."""

    count: int
    """Of the tokens that the graph drew, how many count."""

    @property
    def rows(self) -> range:
        """The rows that are drawn behind."""
        return range(self.first, self.first + 1 + len(self.span.draft))

    def taken(self, tokens: Sequence[int]) -> Sequence[int]:
        """Those that count of the tokens of all rows: none behind a stop token."""
        own = tokens[self.first : self.first + self.count]
        stop = next((place for place, token in enumerate(own) if token in self.state.stop_tokens), len(own))
        return own[: stop + 1]

    def settled(self, tokens: Sequence[int]) -> _Drawing | None:
        """With as many as leave its shape room to be completed; None where it is to be drawn once more."""
        shape = self.state.shape
        own = () if shape is None else self.taken(tokens)
        if shape is None or not own:
            return self
        count = shape.settle(own)
        if not count:
            return None
        return self if count == len(own) else dataclasses.replace(self, count=count)


def _guessed(spans: Sequence[Span], rows: Rows, checked: Checked) -> dict[str, tuple[int, ...]]:
    return {
        span.request: tuple(checked.token_ids[start + 1 : stop])
        for span, (start, stop) in zip(spans, pairwise(rows.span_starts), strict=True)
        if span.guesses
    }


def _taken(drawing: Sequence[_Drawing], tokens: Sequence[int]) -> PassResult:
    """What the graph drew."""
    drawn: list[Drawn] = []
    for one in drawing:
        for token in one.taken(tokens):
            one.state.accept(token)
            drawn.append(Drawn(request=one.span.request, token=token))
    return PassResult(drawn=tuple(drawn), broken=tuple(one.span.request for one in drawing if not one.count))


def _follow_again(chosen: VerifyPass, following: Sequence[int], kept: Sequence[int]) -> None:
    """With tokens that the graph did not draw."""
    bucket = chosen.bucket
    known = padded([max(token, 0) for token in following], bucket.rows, 0)
    chosen.follow(*pack((known, padded(kept, bucket.sequences, 0)), chosen.batch.slots.device))
