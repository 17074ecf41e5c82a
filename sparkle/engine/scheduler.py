"""Plans each pass through the model. Knows no torch, no clock, no text and no queue.

1. A request waits, is read, decodes, has ended; `request.py` has the table of moves.
2. `order.py` says who goes first: short ones, tenants in turn, and none waits for ever.
3. `admission.py` gives slots, and the pages for a longest possible answer: none fails for memory half way.
4. A pass has a budget of rows. Every decoding request takes one: its last token is read, the next is drawn.
5. Drafts come out of the rest, shortest class first: at most half of it while a prompt is being read.
6. Of what is left prompts are read, as `prompt_rows.py` shares it out: all where nobody waits for the pass.
7. The chunk that ends a prompt draws the first token of the answer.
8. `apply` takes what was drawn and ends requests at a stop token or at their greatest length.
9. What an ended request held is a checkpoint, or free for the next pass, which wipes it first: `holdings.py`.
10. `schedule` and `apply` take turns; `add`, `cancel` and `finish` may come at any time.
11. `late` names those that cannot end before their deadline, as soon as that is certain: `lateness.py`.
12. `check_integrity` proves that every slot and every page is either free or held exactly once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sparkle.engine.admission import Admission
from sparkle.engine.holdings import Holdings
from sparkle.engine.lateness import late_of
from sparkle.engine.plan import Drawn, PassPlan, PassResult, Span
from sparkle.engine.prompt_rows import PromptRows
from sparkle.engine.request import Request, RequestState
from sparkle.engine.rounds import Rounds
from sparkle.engine.spans import decode_span, draft_room, reading_span
from sparkle.errors import EngineError
from sparkle.schemas.answer import FinishReason

Drafts = Callable[[Mapping[str, int]], Mapping[str, tuple[int, ...]]]
"""(of each request that decodes the tokens that its draft may have, maybe none) -> drafts for the next pass:
tokens that may follow a request's last one, or TO_GUESS."""


def no_drafts(_rooms: Mapping[str, int]) -> Mapping[str, tuple[int, ...]]:
    """Every pass writes one token a request."""
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """An event: one more token of an answer."""

    drawn: Drawn
    finish: FinishReason | None
    """Why the answer ends with it, if it does."""

    guessed: bool = False
    """Whether the request's draft had it."""


class Scheduler:
    """Owns all requests, and what they hold."""

    def __init__(
        self,
        *,
        num_slots: int,
        num_pages: int,
        page_tokens: int,
        pass_tokens: int,
        chunk_tokens: int,
        cached_slots: int = 0,
        cache_s: float = 0.0,
    ) -> None:
        """`num_slots` requests run at once; `cached_slots` more are there for checkpoints.

        `chunk_tokens`: rows of a pass that read prompts beside answers, as `prompt_rows.py` has it. A
        checkpoint is kept for `cache_s` after its last use; 0 keeps none.
        """
        assert pass_tokens > num_slots, "prompts would starve"
        self._pass_tokens = pass_tokens
        self.holdings = Holdings(
            num_slots=num_slots + cached_slots, num_pages=num_pages, page_tokens=page_tokens, cache_s=cache_s
        )
        self._requests: dict[str, Request] = {}
        self._admission = Admission(self.holdings, num_slots)
        self._in_flight: list[tuple[Request, Span]] | None = None
        self._arrivals = 0
        self._rounds = Rounds()
        self._prompt_rows = PromptRows(chunk_tokens)

    @property
    def has_work(self) -> bool:
        """Whether any request has not ended."""
        return bool(self._requests)

    @property
    def next_pass_s(self) -> float:
        """When a pass is due, on the clock of `schedule`: at once for a request, or to wipe something.

        Where there is neither, when the first checkpoint's time is over; infinite where there is none.
        """
        if self._requests or self.holdings.needs_upkeep:
            return -math.inf
        return self.holdings.checkpoints.next_expiry_s

    @property
    def pass_tokens(self) -> int:
        """Rows of a full pass."""
        return self._pass_tokens

    @property
    def num_running(self) -> int:
        """Requests that hold a slot."""
        return len(self._admission.running)

    @property
    def preempted(self) -> int:
        """How often a request has given way to one of a shorter class."""
        return self._admission.preempted

    def add(self, request: Request) -> None:
        """A new request waits. Raises EngineError where it could never be admitted."""
        pages = self.holdings.pages
        needed = pages.pages_for(request.worst_case_tokens)
        if needed > pages.num_pages:
            raise EngineError(f"request {request.id} needs {needed} pages but there are {pages.num_pages}")
        assert request.id not in self._requests
        assert request.state is RequestState.WAITING
        self._arrivals += 1
        request.arrival = self._arrivals
        self._rounds.join(request)
        self.holdings.name(request)
        self._requests[request.id] = request
        self._admission.waiting.add(request)

    def cancel(self, request_id: str) -> bool:
        """End a request without an answer; False where there is none of this id."""
        request = self._requests.get(request_id)
        if request is not None:
            self._end(request, None)
        return request is not None

    def fail(self, request_id: str) -> None:
        """End a request whose state cannot be trusted; what it went on from and was taken of it goes too."""
        request = self._requests.get(request_id)
        if request is not None:
            self._end(request, None, is_sound=False)
            self.holdings.forget(request.checkpoints)

    def end_conversation(self, tenant: str | None, conversation: str) -> None:
        """Forget what is kept of a tenant's conversation, and keep nothing of what is still running of it."""
        for request in self._requests.values():
            if (request.tenant, request.conversation) == (tenant, conversation):
                request.leaves_state = False
        self.holdings.forget(self.holdings.checkpoints.end_conversation(tenant, conversation))

    def finish(self, request_id: str, reason: FinishReason) -> None:
        """End a request for what its text shows, a stop string; nothing where it has ended."""
        request = self._requests.get(request_id)
        if request is not None:
            self._end(request, reason)

    def late(self, now_s: float, full_pass_s: float) -> list[str]:
        """Requests that cannot end in time; `full_pass_s`: what a full pass takes at least."""
        late = late_of(
            self._requests.values(),
            self.holdings.cached_tokens,
            passes_s=lambda tokens: tokens // self._pass_tokens * full_pass_s,
            now_s=now_s,
        )
        return [request.id for request in late]

    def schedule(self, now_s: float, drafts: Drafts = no_drafts) -> PassPlan:
        """The next pass; an empty one where there is nothing to do. `now_s`: on the clock of `arrived_s`."""
        assert self._in_flight is None, "the pass before has not been applied"
        self.holdings.begin(now_s)
        self._admission.admit(now_s)
        running = self._admission.running
        decoding = [request for request in running if request.state is RequestState.DECODING]
        reading = [request for request in running if request.state is RequestState.READING]
        budget = self._pass_tokens - len(decoding)
        for_drafts = budget // 2 if reading else budget
        self._in_flight = []
        rooms = {request.id: draft_room(request, for_drafts) for request in decoding}
        chosen = drafts(rooms)
        assert all(len(draft) <= rooms[name] for name, draft in chosen.items()), "a draft is too long"
        for request in decoding:
            span = decode_span(request, chosen.get(request.id, ())[:for_drafts])
            for_drafts -= len(span.draft)
            budget -= len(span.draft)
            self._in_flight.append((request, span))
        for request, rows in self._prompt_rows.share(reading, decoding, budget, now_s):
            self._in_flight.append((request, self._read(request, rows)))
        return PassPlan(spans=tuple(span for _, span in self._in_flight), upkeep=self.holdings.upkeep())

    def apply(self, result: PassResult) -> list[Written]:
        """Take the result of the pass planned last; one event for each token of a request still here.

        What was drawn behind the token that ends a request is dropped.
        """
        assert self._in_flight is not None, "no pass has been planned"
        drawn = result.by_request
        events: list[Written] = []
        in_flight, self._in_flight = self._in_flight, None
        self.holdings.settle()
        for request, span in in_flight:
            if request.state is RequestState.ENDED:
                continue
            request.computed = span.start + len(span.tokens)
            request.placed = True
            if span.draws:
                draft = result.guessed.get(request.id, span.draft)
                # each token drawn follows a row that stays
                request.computed -= 1 + len(span.draft) - len(drawn[request.id])
                events += self._write(request, draft, drawn[request.id])
        return events

    def check_integrity(self) -> None:
        """Every slot and page is free or in use as often as is counted. For tests."""
        self.holdings.check_integrity(self._admission.running)
        self._admission.check_integrity()
        here = (*self._admission.waiting, *self._admission.running)
        assert {*self._requests} == {request.id for request in here}

    def _read(self, request: Request, rows: int) -> Span:
        """The next chunk of a prompt, of at most so many rows."""
        places = request.places
        end = request.computed + rows if places is None else places.chunk_end(request.computed, rows)
        span = reading_span(request, end)
        self.holdings.take_checkpoint(request, end)
        return span

    def _write(self, request: Request, draft: tuple[int, ...], drawn: list[Drawn]) -> list[Written]:
        assert len(drawn) <= 1 + len(draft), "more was drawn than was read"
        if request.state is RequestState.READING:
            request.move_to(RequestState.DECODING)
            self._rounds.was_read(request)
        events: list[Written] = []
        for place, one in enumerate(drawn):
            request.answer.append(one.token)
            reason = request.finish_reason()
            guessed = draft[place : place + 1] == (one.token,)
            events.append(Written(drawn=one, finish=reason, guessed=guessed))
            if reason is not None:
                self._end(request, reason)
                break
        return events

    def _end(self, request: Request, reason: FinishReason | None, *, is_sound: bool = True) -> None:
        self._admission.end(request)
        del self._requests[request.id]
        request.move_to(RequestState.ENDED)
        request.finish = reason
        if request.slot is not None:
            self.holdings.release(request, is_sound=is_sound and not self._is_in_flight(request))

    def _is_in_flight(self, request: Request) -> bool:
        # what `computed` says is not what its slot holds
        return any(request is one for one, _ in self._in_flight or ())
