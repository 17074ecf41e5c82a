"""First come, first served, in chunks: the peers' orders beside the scheduler's. Knows no classes."""

from __future__ import annotations

from collections import deque
from enum import StrEnum

from sparkle.engine.pages import PagePool
from sparkle.engine.plan import MAX_DRAFT_TOKENS, Drawn, PassPlan, PassResult, Span
from sparkle.engine.request import Request, RequestState
from sparkle.engine.scheduler import Drafts, Written, no_drafts
from sparkle.engine.slots import SlotPool
from sparkle.schemas.answer import FinishReason


class Reading(StrEnum):
    """What answers being written do while a prompt is read."""

    BESIDE = "beside"  #: go on in the same passes: vLLM
    ALONE = "alone"  #: wait until all prompts are read: SGLang without its mixed chunks


class FirstCome:
    """Serves requests in the order of `add`. Memory is that of the scheduler: no request is put back."""

    def __init__(
        self, *, num_slots: int, num_pages: int, page_tokens: int, pass_tokens: int, reading: Reading
    ) -> None:
        self._pass_tokens = pass_tokens
        self._reading = reading
        self._slots = SlotPool(num_slots)
        self._pages = PagePool(num_pages, page_tokens)
        self._waiting: deque[Request] = deque()
        self._running: dict[str, Request] = {}
        self._in_flight: tuple[Span, ...] = ()

    @property
    def has_work(self) -> bool:
        """Whether any request has not ended."""
        return bool(self._waiting or self._running)

    def add(self, request: Request) -> None:
        """The last in the line."""
        self._waiting.append(request)

    def schedule(self, _now_s: float, drafts: Drafts = no_drafts) -> PassPlan:
        """The next pass, whatever the time."""
        self._admit()
        reading = [one for one in self._running.values() if one.state is RequestState.READING]
        decoding = [one for one in self._running.values() if one.state is RequestState.DECODING]
        if reading and self._reading is Reading.ALONE:
            decoding = []
        chosen = drafts({one.id: _draft_room(one) for one in decoding})
        spans = [_span(one, (one.answer[-1],), chosen.get(one.id, ())) for one in decoding]
        budget = self._pass_tokens - sum(len(span.tokens) for span in spans)
        for one in reading:
            tokens = one.prompt[one.computed : one.computed + budget]
            if tokens:
                spans.append(_span(one, tokens))
                budget -= len(tokens)
        self._in_flight = tuple(spans)
        return PassPlan(spans=self._in_flight)

    def apply(self, result: PassResult) -> list[Written]:
        """Take the result of the pass planned last; one event for each token."""
        drawn = result.by_request
        events: list[Written] = []
        for span in self._in_flight:
            tokens = drawn.get(span.request, [])
            # rows of wrong guesses do not stay
            stay = len(tokens) if span.draft else len(span.tokens)
            self._running[span.request].computed += stay
            events += [Written(drawn=one, finish=self._write(one)) for one in tokens]
        return events

    def _admit(self) -> None:
        while self._waiting and self._slots.num_free:
            request = self._waiting[0]
            pages = self._pages.take(self._pages.pages_for(request.worst_case_tokens))
            if pages is None:
                return
            request.pages = pages
            request.slot = self._slots.take()
            request.move_to(RequestState.READING)
            self._running[request.id] = self._waiting.popleft()

    def _write(self, drawn: Drawn) -> FinishReason | None:
        request = self._running[drawn.request]
        request.answer.append(drawn.token)
        if request.state is RequestState.READING:
            request.move_to(RequestState.DECODING)
        reason = request.finish_reason()
        if reason is not None:
            assert request.slot is not None
            self._slots.give_back(request.slot)
            self._pages.give_back(request.pages)
            del self._running[request.id]
        return reason


def _draft_room(request: Request) -> int:
    return min(MAX_DRAFT_TOKENS, request.max_answer_tokens - len(request.answer) - 1)


def _span(request: Request, tokens: tuple[int, ...], draft: tuple[int, ...] = ()) -> Span:
    assert request.slot is not None
    return Span(
        request=request.id,
        slot=request.slot,
        start=request.computed,
        tokens=(*tokens, *draft),
        pages=request.pages,
        draws=request.computed + len(tokens) >= len(request.prompt),
        fresh=request.computed == 0,
        draft=draft,
    )
