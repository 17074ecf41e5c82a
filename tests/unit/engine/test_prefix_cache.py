"""The scheduler with a prefix cache: every request reads its own tokens and leaves none behind."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sparkle.engine.plan import PassPlan
from sparkle.engine.request import RequestState
from sparkle.schemas.answer import FinishReason
from sparkle.schemas.priority import PriorityClass
from tests.engine.cache_rig import CACHE_S, STOP, Rig, document, request

TENANTS = (None, "a", "b")
CONVERSATIONS = (None, "x", "y")


@dataclass(frozen=True)
class Asked:
    """A request that may go on from another one's answer."""

    kind: int
    length: int
    ending: tuple[int, ...]
    most: int
    tenant: str | None
    conversation: str | None
    priority: PriorityClass


ASKED = st.builds(
    Asked,
    kind=st.integers(0, 1),
    length=st.integers(1, 60),
    ending=st.lists(st.integers(1, 3), max_size=3).map(tuple),
    # long ones may have to give way
    most=st.sampled_from([1, 2, 4, 4, 80]),
    tenant=st.sampled_from(TENANTS),
    conversation=st.sampled_from(CONVERSATIONS),
    priority=st.sampled_from(PriorityClass),
)


class CacheMachine(RuleBasedStateMachine):
    """Requests that begin alike, of several tenants, ended in every way; time goes by; memory is short."""

    @initialize(
        num_slots=st.integers(1, 3),
        cached_slots=st.integers(0, 4),
        page_tokens=st.integers(1, 4),
        pages=st.integers(40, 120),
        pass_tokens=st.sampled_from([6, 30, 100]),
    )
    def start(
        self, num_slots: int, cached_slots: int, page_tokens: int, pages: int, pass_tokens: int
    ) -> None:
        self.rig = Rig(
            num_slots=num_slots,
            cached_slots=cached_slots,
            num_pages=pages,
            page_tokens=page_tokens,
            pass_tokens=pass_tokens,
        )
        self.plan: PassPlan | None = None

    @rule(asked=st.lists(ASKED, min_size=1, max_size=4), follows=st.lists(st.integers(0, 5), max_size=4))
    def add(self, asked: list[Asked], follows: list[int]) -> None:
        """Some of them go on from an answer, one of the last that ended."""
        rig = self.rig
        ended = [one for one in rig.requests.values() if one.state is RequestState.ENDED and one.answer]
        for one, back in zip_longest(asked, follows[: len(asked)], fillvalue=0):
            assert isinstance(one, Asked)
            prompt, tenant = document(one.kind, one.length, one.ending), one.tenant
            if 0 < back <= len(ended):
                before = ended[-back]
                prompt, tenant = (*before.tokens, *one.ending, 7), before.tenant
            added = request(
                str(len(rig.requests)),
                prompt,
                most=one.most,
                tenant=tenant,
                conversation=one.conversation,
                priority=one.priority,
            )
            if added.worst_case_tokens <= rig.num_pages * rig.page_tokens:
                rig.add(added)

    @precondition(lambda self: self.rig.planner.has_work)
    @rule(data=st.data(), how=st.sampled_from(["cancel", "finish", "fail"]))
    def end(self, data: st.DataObject, how: str) -> None:
        running = [name for name, one in self.rig.requests.items() if one.state is not RequestState.ENDED]
        name = data.draw(st.sampled_from(running))
        match how:
            case "cancel":
                self.rig.planner.cancel(name)
            case "finish":
                self.rig.planner.finish(name, FinishReason.STOP)
            case _:
                self.rig.planner.fail(name)

    @rule(tenant=st.sampled_from(TENANTS), conversation=st.sampled_from(["x", "y"]))
    def end_conversation(self, tenant: str | None, conversation: str) -> None:
        self.rig.planner.end_conversation(tenant, conversation)
        left = self.rig.planner.holdings.checkpoints.all
        assert not any(one.tenant == tenant and one.conversations == [conversation] for one in left)

    @precondition(lambda self: self.plan is None)
    @rule(later_s=st.sampled_from([0.0, 0.0, 1.0, CACHE_S]), width=st.integers(0, 5))
    def schedule(self, later_s: float, width: int) -> None:
        self.rig.now_s += later_s
        self.plan = self.rig.schedule(dict.fromkeys(self.rig.requests, (5,) * width))

    @precondition(lambda self: self.plan is not None)
    @rule(data=st.data())
    def finish_pass(self, data: st.DataObject) -> None:
        assert self.plan is not None
        tokens: dict[str, tuple[int, ...]] = {}
        for span in self.plan.spans:
            agreed = data.draw(st.integers(0, len(span.draft)))
            tokens[span.request] = (*span.draft[:agreed], data.draw(st.sampled_from([STOP, 4])))
        self.rig.finish_pass(self.plan, tokens)
        self.plan = None

    @precondition(lambda self: self.plan is None)
    @rule(passes=st.integers(1, 15), token=st.sampled_from([STOP, 4]))
    def run_passes(self, passes: int, token: int) -> None:
        """Most requests get somewhere."""
        for _ in range(passes):
            self.rig.run_pass(token)

    @invariant()
    def integrity(self) -> None:
        self.rig.planner.check_integrity()
        if self.plan is None:
            # what was freed behind the last plan waits for the next one
            slots, pages = self.rig.planner.holdings.slots, self.rig.planner.holdings.pages
            self.rig.pool.check_blank(slots.free - slots.unwiped, pages.free - pages.unwiped)
        # what is kept is what it is kept for
        for one in self.rig.planner.holdings.checkpoints.all:
            tenant, tokens = self.rig.pool.states[one.slot]
            assert (tenant, len(tokens)) == (one.tenant or "", one.position)
            assert self.rig.pool.tokens_of(one.pages, one.position) == tokens

    def teardown(self) -> None:
        """Whatever came before: all end, and when the time is over nothing is left anywhere."""
        if not hasattr(self, "rig"):
            return
        if self.plan is not None:
            self.rig.finish_pass(self.plan, dict.fromkeys(self.rig.requests, (STOP,)))
        self.rig.run()
        self.rig.now_s += CACHE_S
        assert self.rig.planner.next_pass_s <= self.rig.now_s or not self.rig.planner.holdings.checkpoints.all
        self.rig.run_pass()
        assert self.rig.planner.next_pass_s == float("inf")
        self.rig.check_all_is_blank()


CacheMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)
TestCacheMachine = CacheMachine.TestCase
