"""The endpoints that answer: chat completions, completions, responses. Knows no NATS and no form's inside."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from starlette.responses import JSONResponse
from starlette.types import ASGIApp

from sparkle.errors import AnswerChanged, SparkleError
from sparkle.producers.gateway.access import Principal
from sparkle.producers.gateway.answer_form import AnswerForm, Fields, Used
from sparkle.producers.gateway.asked import Defaults, Order
from sparkle.producers.gateway.body import read_as
from sparkle.producers.gateway.chat_answer import ChatAnswer
from sparkle.producers.gateway.chat_request import ChatRequest, chat_orders
from sparkle.producers.gateway.completion_answer import CompletionAnswer
from sparkle.producers.gateway.completion_request import CompletionRequest, completion_orders
from sparkle.producers.gateway.desk import Desk
from sparkle.producers.gateway.endpoint import Call
from sparkle.producers.gateway.event_stream import EventStream, unless_gone
from sparkle.producers.gateway.faults import from_error
from sparkle.producers.gateway.metrics import GatewayMetrics
from sparkle.producers.gateway.models import ServedModels
from sparkle.producers.gateway.pieces import Piece, pieces
from sparkle.producers.gateway.response_answer import ResponseObject
from sparkle.producers.gateway.response_events import ResponseAnswer
from sparkle.producers.gateway.response_request import ResponseRequest, response_order
from sparkle.producers.gateway.settings import GatewaySettings
from sparkle.producers.gateway.trace import traceparent
from sparkle.producers.handle import Handle
from sparkle.schemas.answer import Channel, Chunk, Result
from sparkle.schemas.message import Part
from sparkle.schemas.priority import PriorityClass, ServiceRates

P = TypeVar("P", bound=Part)


@dataclass(frozen=True, slots=True)
class Asking:
    """A request made ready: its orders, the form of its answer."""

    orders: tuple[Order, ...]
    form: AnswerForm

    def traced(self, traceparent: str | None) -> Asking:
        """The same as part of the caller's trace."""
        if traceparent is None:
            return self
        changes = {"traceparent": traceparent}
        orders = (replace(order, job=order.job.model_copy(update=changes)) for order in self.orders)
        return replace(self, orders=tuple(orders))

    def for_later(self) -> Asking:
        """The same in the last class: what nobody sits and waits for."""
        last = max(PriorityClass)
        return replace(self, orders=tuple(replace(order, priority=last) for order in self.orders))


class Forms:
    """From a request to its orders and its answer's form; the same for a request of a batch."""

    def __init__(self, settings: GatewaySettings, models: ServedModels, rates: ServiceRates) -> None:
        self._settings = settings
        self._models = models
        self._rates = rates

    def chat(self, asked: ChatRequest, principal: Principal, *, deadline_s: float | None = None) -> Asking:
        """A chat. Raises ApiFault."""
        model = self._models.choose(asked.model, principal)
        orders = chat_orders(asked, self._defaults(principal, deadline_s))
        form = ChatAnswer(
            orders[0].job.id, created_s=int(time.time()), model=model, with_usage=asked.wants_usage
        )
        return Asking(orders, form)

    def completion(
        self, asked: CompletionRequest, principal: Principal, *, deadline_s: float | None = None
    ) -> Asking:
        """Texts to go on from. Raises ApiFault."""
        model = self._models.choose(asked.model, principal)
        orders = completion_orders(asked, self._defaults(principal, deadline_s))
        form = CompletionAnswer(
            orders[0].job.id, created_s=int(time.time()), model=model, with_usage=asked.wants_usage
        )
        return Asking(orders, form)

    def response(
        self, asked: ResponseRequest, principal: Principal, *, deadline_s: float | None = None
    ) -> Asking:
        """A chat as items. Raises ApiFault."""
        model = self._models.choose(asked.model, principal)
        job = (order := response_order(asked, self._defaults(principal, deadline_s))).job
        response = ResponseObject(
            asked, job.id, created_s=int(time.time()), model=model, max_tokens=job.max_tokens
        )
        return Asking((order,), ResponseAnswer(response))

    def _defaults(self, principal: Principal, deadline_s: float | None) -> Defaults:
        return Defaults(
            tenant=principal.tenant,
            region=principal.region,
            max_tokens=self._settings.max_tokens,
            deadline_s=self._settings.deadline_s if deadline_s is None else deadline_s,
            max_choices=self._settings.max_choices,
            rates=self._rates,
        )


class Generating:
    """The three endpoints."""

    def __init__(self, settings: GatewaySettings, forms: Forms, desk: Desk, metrics: GatewayMetrics) -> None:
        self._settings = settings
        self._forms = forms
        self._desk = desk
        self._metrics = metrics

    async def chat(self, call: Call) -> ASGIApp:
        """POST /v1/chat/completions."""
        asked = await self._read(ChatRequest, call)
        return await self._answer(call, self._forms.chat(asked, call.principal), stream=bool(asked.stream))

    async def completion(self, call: Call) -> ASGIApp:
        """POST /v1/completions."""
        asked = await self._read(CompletionRequest, call)
        asking = self._forms.completion(asked, call.principal)
        return await self._answer(call, asking, stream=bool(asked.stream))

    async def response(self, call: Call) -> ASGIApp:
        """POST /v1/responses."""
        asked = await self._read(ResponseRequest, call)
        asking = self._forms.response(asked, call.principal)
        return await self._answer(call, asking, stream=bool(asked.stream))

    async def _read(self, model: type[P], call: Call) -> P:
        return await read_as(
            model,
            call.request,
            call.held,
            max_bytes=self._settings.body_max_bytes,
            timeout_s=self._settings.body_timeout_s,
        )

    async def _answer(self, call: Call, asking: Asking, *, stream: bool) -> ASGIApp:
        """The whole answer, or a stream whose first piece is there: what fails before has its own status."""
        asking = asking.traced(traceparent(call.request))
        if not stream:
            with self._metrics.request_s.time():
                fields = await unless_gone(call.request, self.whole(call.principal, asking))
            return JSONResponse(fields)
        events = self._events(call.principal, asking)
        with self._metrics.first_event_s.time():
            first = await unless_gone(call.request, anext(events))
        return EventStream(_joined(first, events), send_timeout_s=self._settings.send_timeout_s)

    async def whole(self, principal: Principal, asking: Asking) -> Fields:
        """The answer at once. Raises SparkleError."""
        async with self._desk.taken(principal, asking.orders) as handles:
            tally = await collected(handles)
        return asking.form.whole(tally.in_order(), tally.used())

    async def _events(self, principal: Principal, asking: Asking) -> AsyncGenerator[bytes]:
        """The answer's events. Raises SparkleError in place of the first; later it is the last event."""
        form, tally, begun = asking.form, Tally(), False
        with self._metrics.request_s.time():
            try:
                async with self._desk.taken(principal, asking.orders) as handles:
                    async for index, piece in pieces(handles):
                        new = not tally.knows(index)
                        tally.count((index, piece))
                        events = _of(form, index, piece, new=new)
                        if events:
                            begun = True
                            yield events
                yield _bytes(form, form.after(tally.in_order(), tally.used())) + form.end
            except SparkleError as error:
                if not begun:
                    raise
                yield _bytes(form, form.failed(from_error(error).error()))


class Tally:
    """The choices of one request as far as they are."""

    def __init__(self) -> None:
        self._results: dict[int, Result | None] = {}
        self._reasoning_tokens = 0

    def knows(self, index: int) -> bool:
        """Whether anything of the choice has come."""
        return index in self._results

    def count(self, piece: Piece) -> None:
        """A piece has come."""
        index, came = piece
        if isinstance(came, Result):
            self._results[index] = came
            return
        self._results.setdefault(index)
        if came.channel is Channel.REASONING:
            self._reasoning_tokens += len(came.tokens)

    def in_order(self) -> Sequence[Result]:
        """The results, all of which are in."""
        return [result for _, result in sorted(self._results.items()) if result is not None]

    def used(self) -> Used:
        """What they used."""
        return Used.of(self.in_order(), reasoning_tokens=self._reasoning_tokens)


async def collected(handles: Sequence[Handle]) -> Tally:
    """All choices, whole. Raises what a handle's result raises."""
    tally = Tally()
    try:
        async for piece in pieces(handles):
            tally.count(piece)
    except AnswerChanged:
        # nobody has seen what changed: the results stand
        for index, handle in enumerate(handles):
            tally.count((index, await handle.result()))
    return tally


def _of(form: AnswerForm, index: int, piece: Chunk | Result, *, new: bool) -> bytes:
    """The events of one piece."""
    begun = _bytes(form, form.first(index)) if new else b""
    more = form.deltas(index, piece) if isinstance(piece, Chunk) else form.last(index, piece)
    return begun + _bytes(form, more)


def _bytes(form: AnswerForm, events: Iterable[Fields]) -> bytes:
    return b"".join(form.event(fields) for fields in events)


async def _joined(first: bytes, rest: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    try:
        yield first
        async for event in rest:
            yield event
    finally:
        await rest.aclose()
