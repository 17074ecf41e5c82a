"""The scheduler against every order of additions, cancellations and passes, and its policy case by case."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sparkle.engine.plan import MAX_DRAFT_TOKENS, TO_GUESS, Drawn, PassPlan, PassResult
from sparkle.engine.request import Request, RequestState
from sparkle.engine.scheduler import Drafts, Scheduler, Written
from sparkle.errors import EngineError
from sparkle.schemas.answer import FinishReason
from sparkle.schemas.priority import PriorityClass

STOP = 1
GO_ON = 5


def request(
    name: str,
    prompt_tokens: int = 4,
    max_answer_tokens: int = 3,
    priority: PriorityClass = PriorityClass.P1,
    arrived_s: float = 0.0,
) -> Request:
    return Request(
        id=name,
        prompt=tuple(range(100, 100 + prompt_tokens)),
        max_answer_tokens=max_answer_tokens,
        stop_tokens=frozenset({STOP}),
        priority=priority,
        arrived_s=arrived_s,
    )


def scheduler(
    num_slots: int = 2,
    num_pages: int = 8,
    page_tokens: int = 4,
    pass_tokens: int = 8,
    chunk_tokens: int = 100,
) -> Scheduler:
    return Scheduler(
        num_slots=num_slots,
        num_pages=num_pages,
        page_tokens=page_tokens,
        pass_tokens=pass_tokens,
        chunk_tokens=chunk_tokens,
    )


def draw(plan: PassPlan, token: int = GO_ON) -> PassResult:
    return PassResult(
        drawn=tuple(Drawn(request=span.request, token=token) for span in plan.spans if span.draws)
    )


def run_pass(planner: Scheduler, token: int = GO_ON) -> tuple[dict[str, tuple[int, ...]], list[Written]]:
    """One pass: what each request read, and the events."""
    plan = planner.schedule(0.0)
    events = planner.apply(draw(plan, token))
    planner.check_integrity()
    return {span.request: span.tokens for span in plan.spans}, events


def guess(width: int) -> tuple[int, ...]:
    return tuple(GO_ON + place for place in range(width))


class SchedulerMachine(RuleBasedStateMachine):
    """Adds, cancels, finishes and runs passes in any order, even between a plan and its result."""

    @initialize(
        num_slots=st.integers(1, 4),
        num_pages=st.integers(3, 12),
        page_tokens=st.integers(1, 5),
        extra=st.integers(1, 9),
        chunk_tokens=st.integers(1, 20),
    )
    def start(self, num_slots: int, num_pages: int, page_tokens: int, extra: int, chunk_tokens: int) -> None:
        self.pass_tokens, self.page_tokens = num_slots + extra, page_tokens
        self.capacity_tokens = num_pages * page_tokens
        self.planner = scheduler(num_slots, num_pages, page_tokens, self.pass_tokens, chunk_tokens)
        self.requests: dict[str, Request] = {}
        self.read: dict[str, list[int]] = {}
        self.ended: set[str] = set()
        self.plan: PassPlan | None = None
        self.now_s = 0.0

    @rule(
        prompt_tokens=st.integers(1, 30),
        max_answer_tokens=st.integers(1, 8),
        priority=st.sampled_from(PriorityClass),
    )
    def add(self, prompt_tokens: int, max_answer_tokens: int, priority: PriorityClass) -> None:
        one = request(str(len(self.requests)), prompt_tokens, max_answer_tokens, priority, self.now_s)
        if one.worst_case_tokens > self.capacity_tokens:
            with pytest.raises(EngineError):
                self.planner.add(one)
            return
        self.planner.add(one)
        self.requests[one.id] = one
        self.read[one.id] = []

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.requests)))
        assert self.planner.cancel(name) == (name not in self.ended)
        self.ended.add(name)

    @precondition(lambda self: len(self.requests) > len(self.ended))
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(set(self.requests) - self.ended)))
        self.planner.finish(name, FinishReason.STOP)
        assert self.requests[name].finish is FinishReason.STOP
        self.ended.add(name)

    @precondition(lambda self: self.plan is None)
    @rule(
        widths=st.lists(st.integers(0, 15), min_size=4, max_size=4),
        guessing=st.lists(st.booleans(), min_size=4, max_size=4),
        later_s=st.sampled_from([0.0, 0.5, 2.0, 100.0]),
    )
    def schedule(self, widths: list[int], guessing: list[bool], later_s: float) -> None:
        self.now_s += later_s
        decoding = {n for n, one in self.requests.items() if one.state is RequestState.DECODING}
        chosen: dict[str, tuple[int, ...]] = {}

        def drafts(rooms: Mapping[str, int]) -> Mapping[str, tuple[int, ...]]:
            assert rooms.keys() == decoding
            for (name, room), width, guesses in zip(rooms.items(), widths, guessing, strict=False):
                assert 0 <= room <= MAX_DRAFT_TOKENS
                one = self.requests[name]
                assert len(one.answer) + room + 1 <= one.max_answer_tokens
                count = min(room, width)
                chosen[name] = (TO_GUESS,) * count if guesses else guess(count)
            return chosen

        plan = self.planner.schedule(self.now_s, drafts)
        assert plan.num_tokens <= self.pass_tokens
        assert len({span.request for span in plan.spans}) == len(plan.spans)
        assert len({span.slot for span in plan.spans}) == len(plan.spans)
        held = [page for span in plan.spans for page in span.pages]
        assert len(held) == len(set(held))
        # decodes never starve, and while anything is here a pass does something
        assert decoding <= {span.request for span in plan.spans}
        assert bool(plan.spans) == self.planner.has_work
        reading = {n for n, one in self.requests.items() if one.state is RequestState.READING}
        # a prompt may have to wait until its rows are worth a pass, but not for drafts
        drafted = sum(len(span.draft) for span in plan.spans)
        assert not reading or drafted <= (self.pass_tokens - len(decoding)) // 2, "drafts starve prompts"
        for span in plan.spans:
            one = self.requests[span.request]
            known = (*one.prompt, *one.answer, *span.draft)
            # where there are too few rows for all of them, drafts are cut
            assert span.draft == chosen.get(span.request, ())[: len(span.draft)]
            assert span.tokens
            assert span.start == len(self.read[span.request])
            assert span.fresh == (span.start == 0)
            assert span.tokens == known[span.start : span.start + len(span.tokens)]
            assert span.draws == (span.start + len(span.tokens) == len(known))
            assert len(span.pages) * self.page_tokens >= span.start + len(span.tokens)
            assert span.guesses in (0, len(span.draft))
            rest = one.prompt[span.start + len(span.tokens) :]
            assert span.following == (rest[0] if rest else None)
        self.plan = plan

    @precondition(lambda self: self.plan is not None)
    @rule(data=st.data())
    def apply(self, data: st.DataObject) -> None:
        assert self.plan is not None
        drawn: list[Drawn] = []
        expected: list[tuple[str, int, bool]] = []
        before = {name: list(one.answer) for name, one in self.requests.items()}
        guessed = {span.request: guess(span.guesses) for span in self.plan.spans if span.guesses}
        for planned in self.plan.spans:
            span = planned.with_draft(guessed.get(planned.request, planned.draft))
            agreed = data.draw(st.integers(0, len(span.draft)))
            last = data.draw(st.sampled_from([STOP, GO_ON - 1]))
            tokens = [*span.draft[:agreed], last] if span.draws else []
            drawn += [Drawn(request=span.request, token=token) for token in tokens]
            # rows of the draft that nothing was drawn behind are not read
            stay = len(span.tokens) - len(span.draft) + agreed
            self.read[span.request].extend(span.tokens[:stay])
            if span.request not in self.ended:
                expected += [(span.request, token, place < agreed) for place, token in enumerate(tokens)]
        events = self.planner.apply(PassResult(drawn=tuple(drawn), guessed=guessed))
        assert [(one.drawn.request, one.drawn.token, one.guessed) for one in events] == expected
        for event in events:
            one = self.requests[event.drawn.request]
            before[one.id].append(event.drawn.token)
            assert event.finish == (one.finish if before[one.id] == one.answer else None)
            if event.finish is not None:
                self.ended.add(one.id)
        for name, answer in before.items():
            one = self.requests[name]
            assert one.answer == answer
            if one.state is RequestState.DECODING:
                assert one.computed == len(self.read[name]) == len(one.prompt) + len(answer) - 1
                assert one.finish_reason() is None
        self.plan = None

    @invariant()
    def integrity(self) -> None:
        self.planner.check_integrity()
        for name in self.ended:
            one = self.requests[name]
            assert (one.state, one.slot, one.pages) == (RequestState.ENDED, None, ())

    def teardown(self) -> None:
        """Whatever came before: every request ends in a bounded number of passes, and holds nothing."""
        if not hasattr(self, "planner"):
            return
        if self.plan is not None:
            self.planner.apply(draw(self.plan))
        most = sum(one.worst_case_tokens for one in self.requests.values())
        passes = 0
        while self.planner.has_work:
            run_pass(self.planner)
            passes += 1
            assert passes <= most
        assert all(one.state is RequestState.ENDED for one in self.requests.values())
        assert self.planner.num_running == 0


SchedulerMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestSchedulerMachine = SchedulerMachine.TestCase


def test_a_prompt_is_read_in_chunks_then_decodes() -> None:
    planner = scheduler(pass_tokens=3)
    planner.add(request("a", prompt_tokens=7, max_answer_tokens=3))
    assert run_pass(planner) == ({"a": (100, 101, 102)}, [])
    assert run_pass(planner) == ({"a": (103, 104, 105)}, [])
    read, events = run_pass(planner, token=50)
    assert read == {"a": (106,)}
    assert events == [Written(drawn=Drawn(request="a", token=50), finish=None)]
    read, events = run_pass(planner, token=51)
    assert read == {"a": (50,)}
    assert events == [Written(drawn=Drawn(request="a", token=51), finish=None)]
    _, events = run_pass(planner, token=52)
    assert events == [Written(drawn=Drawn(request="a", token=52), finish=FinishReason.LENGTH)]
    assert not planner.has_work


def test_decodes_come_first_and_prompts_share_the_rest() -> None:
    planner = scheduler(num_slots=3, num_pages=30, pass_tokens=8)
    planner.add(request("a", prompt_tokens=2))
    run_pass(planner)
    planner.add(request("b", prompt_tokens=5))
    planner.add(request("c", prompt_tokens=10))
    read, _ = run_pass(planner)
    assert read == {"a": (GO_ON,), "b": (100, 101, 102, 103, 104), "c": (100, 101)}


def test_a_shorter_class_goes_first_even_into_a_prompt_being_read() -> None:
    planner = scheduler(num_slots=2, num_pages=30, pass_tokens=4)
    planner.add(request("long", prompt_tokens=12, priority=PriorityClass.P3))
    assert run_pass(planner)[0] == {"long": (100, 101, 102, 103)}
    planner.add(request("short", prompt_tokens=5, priority=PriorityClass.P0))
    assert run_pass(planner)[0] == {"short": (100, 101, 102, 103)}
    assert run_pass(planner)[0] == {"short": (104,), "long": (104, 105, 106)}


def test_first_come_first_served_inside_a_class() -> None:
    planner = scheduler(num_slots=1, num_pages=30)
    for name in ("first", "second", "third"):
        planner.add(request(name, max_answer_tokens=1))
    order = [*run_pass(planner)[0], *run_pass(planner)[0], *run_pass(planner)[0]]
    assert order == ["first", "second", "third"]


def test_admission_waits_for_the_worst_case_and_who_fits_goes_ahead() -> None:
    planner = scheduler(num_slots=3, num_pages=4, page_tokens=4)
    planner.add(request("half", prompt_tokens=4, max_answer_tokens=5))
    planner.add(request("other half", prompt_tokens=4, max_answer_tokens=1))
    # behind the other in line, but it fits into the one page left
    planner.add(request("small", prompt_tokens=1, max_answer_tokens=2, priority=PriorityClass.P2))
    assert set(run_pass(planner)[0]) == {"half", "small"}
    planner.cancel("half")
    assert set(run_pass(planner)[0]) == {"other half", "small"}


def test_what_is_free_is_kept_for_one_that_is_overdue() -> None:
    planner = scheduler(num_slots=3, num_pages=4, page_tokens=4)
    planner.add(request("half", prompt_tokens=4, max_answer_tokens=5))
    planner.add(request("other half", prompt_tokens=4, max_answer_tokens=1))
    run_pass(planner)
    planner.add(request("small", prompt_tokens=1, max_answer_tokens=2, arrived_s=3.9))
    for now_s, running in ((4.0, {"half"}), (3.9, {"half", "small"})):
        plan = planner.schedule(now_s)
        assert {span.request for span in plan.spans} == running
        planner.apply(draw(plan))


def test_what_can_never_fit_is_refused_with_both_numbers() -> None:
    with pytest.raises(EngineError, match="needs 3 pages but there are 2"):
        scheduler(num_pages=2, page_tokens=4).add(request("a", prompt_tokens=8, max_answer_tokens=1))


def test_cancelling_frees_slot_and_pages_for_the_very_next_pass() -> None:
    planner = scheduler(num_slots=1, num_pages=2, page_tokens=4)
    planner.add(request("a", prompt_tokens=5))
    planner.add(request("b", prompt_tokens=5))
    assert set(run_pass(planner)[0]) == {"a"}
    assert planner.cancel("a")
    assert not planner.cancel("a")
    assert set(run_pass(planner)[0]) == {"b"}


def test_a_result_for_a_request_cancelled_in_flight_is_dropped() -> None:
    planner = scheduler()
    planner.add(request("a"))
    plan = planner.schedule(0.0)
    planner.cancel("a")
    # the same id again is another request: the old pass is not its pass
    again = request("a")
    planner.add(again)
    assert planner.apply(draw(plan)) == []
    assert (again.computed, again.answer) == (0, [])
    assert run_pass(planner)[0] == {"a": (100, 101, 102, 103)}


def test_an_empty_scheduler_plans_an_empty_pass() -> None:
    planner = scheduler()
    assert planner.schedule(0.0) == PassPlan(spans=())
    assert planner.apply(PassResult(drawn=())) == []
    assert not planner.has_work


def always(*tokens: int) -> Drafts:
    """The same draft for every request, as far as it may go."""
    return lambda rooms: {name: tokens[:room] for name, room in rooms.items()}


def draw_drafted(plan: PassPlan, *tokens: int) -> PassResult:
    """The same tokens for every request."""
    return PassResult(
        drawn=tuple(Drawn(request=span.request, token=t) for span in plan.spans for t in tokens)
    )


def drafting(*, max_answer_tokens: int = 20) -> Scheduler:
    """One request whose prompt of four tokens is read, and whose first token is written."""
    planner = scheduler(num_pages=30, pass_tokens=40)
    planner.add(request("a", max_answer_tokens=max_answer_tokens))
    run_pass(planner)
    return planner


def test_a_draft_is_read_behind_the_last_token_and_as_far_as_it_was_drawn_it_stays() -> None:
    planner = drafting()
    (span,) = planner.schedule(0.0, always(50, 51, 52)).spans
    assert (span.start, span.tokens, span.draft, span.draws) == (4, (GO_ON, 50, 51, 52), (50, 51, 52), True)
    events = planner.apply(PassResult(drawn=tuple(Drawn(request="a", token=t) for t in (50, 51, 77))))
    assert [(one.drawn.token, one.guessed) for one in events] == [(50, True), (51, True), (77, False)]
    # a pass with no draft goes on behind what stayed
    (span,) = planner.schedule(0.0).spans
    assert (span.start, span.tokens, span.draft) == (7, (77,), ())


def test_a_stop_token_inside_a_draft_ends_the_answer_there() -> None:
    planner = drafting()
    events = planner.apply(draw_drafted(planner.schedule(0.0, always(50, STOP, 52)), 50, STOP, 52, 60))
    assert [(one.drawn.token, one.finish) for one in events] == [(50, None), (STOP, FinishReason.STOP)]
    planner.check_integrity()
    assert not planner.has_work


def test_a_draft_never_goes_beyond_the_answers_greatest_length() -> None:
    planner = drafting(max_answer_tokens=4)
    plan = planner.schedule(0.0, always(50, 51, 52, 53, 54))
    # two guesses and one more token are all that may follow
    assert plan.spans[0].draft == (50, 51)
    events = planner.apply(draw_drafted(plan, 50, 51, 52))
    assert [one.finish for one in events] == [None, None, FinishReason.LENGTH]
    assert not planner.has_work


def test_the_last_token_is_not_drafted_for() -> None:
    planner = drafting(max_answer_tokens=2)
    assert planner.schedule(0.0, always(50)).spans[0].draft == ()


def test_drafts_leave_half_of_the_rest_to_prompts() -> None:
    planner = scheduler(num_slots=3, num_pages=60, pass_tokens=13)
    planner.add(request("a", max_answer_tokens=30))
    planner.add(request("b", max_answer_tokens=30))
    run_pass(planner)
    plan = planner.schedule(0.0, always(*range(50, 58)))
    # alone, they take all: 13 rows less the last token of each
    assert [len(span.draft) for span in plan.spans] == [8, 3]
    planner.apply(draw_drafted(plan, 70))
    planner.add(request("c", prompt_tokens=30))
    plan = planner.schedule(0.0, always(*range(50, 58)))
    assert [(len(span.draft), len(span.tokens)) for span in plan.spans] == [(5, 6), (0, 1), (0, 6)]


def test_finishing_a_request_that_a_later_token_of_its_pass_ended_is_nothing() -> None:
    planner = drafting()
    planner.apply(draw_drafted(planner.schedule(0.0, always(50)), STOP))
    planner.finish("a", FinishReason.STOP)
    planner.check_integrity()


@given(
    prompt_tokens=st.integers(1, 60),
    passed=st.integers(0, 20),
    full_pass_ms=st.integers(0, 9),
    deadline_ms=st.integers(0, 80),
)
def test_late_is_who_would_miss_its_deadline_even_alone_and_with_one_token(
    prompt_tokens: int, passed: int, full_pass_ms: int, deadline_ms: int
) -> None:
    planner = scheduler(num_pages=20, pass_tokens=8)
    one = request("a", prompt_tokens, max_answer_tokens=1)
    one.deadline_s = float(deadline_ms)
    planner.add(one)
    now_ms = 0.0
    named: list[str] | None = None
    while planner.has_work:
        if passed == 0:
            named = planner.late(now_ms, full_pass_ms)
        passed -= 1
        plan = planner.schedule(0.0)
        now_ms += full_pass_ms if plan.num_tokens == 8 else 0
        planner.apply(draw(plan))
    assert named is None or named == ["a"] * (now_ms >= deadline_ms)
