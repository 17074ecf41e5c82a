"""Jobs in any order, cancelled, sent again, ended and late at any moment: each gets the answer it gets alone.

Through the whole engine, with short memory, a prefix cache, drafts and jobs that give way.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from sparkle.engine.frames import Accepted, Delta, Failed, Finished
from sparkle.engine.settings import Device, EngineSettings
from sparkle.errors import FailureCode
from sparkle.schemas.job import Job
from sparkle.text.tokenizer import Tokenizer
from tests.engine.bundle import GREEDY, Answer, engine_around
from tests.engine.history_model import BLANK
from tests.engine.test_gpu_runner import VOCAB, Rig, config
from tests.engine.test_gpu_runner_cache import expected_answer
from tests.engine.test_gpu_runner_guesses import always, sometimes

CACHE_S = 100.0
CONTEXT = 240
"""As long as all of the shortest memory, whatever a page holds of the sizes here."""


@dataclass
class Clock:
    """A fiftieth of a second later each time."""

    now_s: float = 1000.0

    def __call__(self) -> float:
        self.now_s += 0.02
        return self.now_s


class EngineMachine(RuleBasedStateMachine):
    """Several tenants' jobs that begin like one another, or go on from an answer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__()
        self._tokenizer = tokenizer

    @initialize(
        slots=st.integers(1, 3),
        cached_slots=st.integers(0, 4),
        page_tokens=st.sampled_from([3, 8, 16]),
        memory=st.sampled_from([1, 2]),
        pass_tokens=st.sampled_from([20, 60, 200]),
        draft_tokens=st.sampled_from([0, 3, 15]),
        guesses_well=st.booleans(),
    )
    def start(
        self,
        slots: int,
        cached_slots: int,
        page_tokens: int,
        memory: int,
        pass_tokens: int,
        draft_tokens: int,
        *,
        guesses_well: bool,
    ) -> None:
        of = EngineSettings(
            slots=slots,
            cached_slots=cached_slots,
            page_tokens=page_tokens,
            kv_tokens=memory * CONTEXT,
            pass_tokens=pass_tokens,
            draft_tokens=draft_tokens,
            cache_s=CACHE_S,
            max_context_tokens=CONTEXT,
        ).sizes(Device.CPU)
        widths = (1, 4, 16) if draft_tokens else (1, 4)
        self.rig = Rig(of, widths, right=always if guesses_well else sometimes, prompt_rows=(32,))
        self.clock = Clock()
        self.built = engine_around(self.rig.runner, config(), self._tokenizer, of, clock=self.clock)
        self.jobs: dict[str, Job] = {}
        self.open: dict[str, Answer] = {}
        self.said: list[list[int]] = []

    @rule(
        kind=st.integers(0, 1),
        length=st.one_of(st.integers(1, 40), st.integers(1, CONTEXT), st.just(CONTEXT - 1)),
        earlier=st.integers(0, 6),
        then=st.lists(st.integers(5, 9), max_size=3),
        most=st.sampled_from([1, 2, 5, 30, 200, 200, 4000]),
        tenant=st.sampled_from(["a", "b"]),
        conversation=st.sampled_from([None, "x", "y"]),
        # in time, too late already, and now or never
        left_s=st.sampled_from([None, None, None, -5.0, 0.3, 1e9]),
    )
    def submit(
        self,
        kind: int,
        length: int,
        earlier: int,
        then: list[int],
        most: int,
        tenant: str,
        conversation: str | None,
        left_s: float | None,
    ) -> None:
        document = [(place * 31 + kind * place * place) % VOCAB for place in range(length)]
        before = self.said[-earlier] if 0 < earlier <= len(self.said) else document
        job = Job(
            prompt_tokens=[*before, *then],
            max_tokens=most,
            sampling=GREEDY,
            tenant=tenant,
            conversation=conversation,
            deadline_ms=None if left_s is None else int(1000 * (self.clock.now_s + left_s)),
        )
        self.jobs[job.id] = job
        self._submit(job)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        job = data.draw(st.sampled_from(list(self.open)))
        self.built.engine.cancel(job)
        del self.open[job]

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def submit_again(self, data: st.DataObject) -> None:
        """As when the queue takes its worker for dead; wherever it stands, it starts anew."""
        self._submit(self.jobs[data.draw(st.sampled_from(list(self.open)))])

    @rule(tenant=st.sampled_from(["a", "b", None]), conversation=st.sampled_from(["x", "y"]))
    def end_conversation(self, tenant: str | None, conversation: str) -> None:
        self.built.engine.end_conversation(tenant, conversation)

    @rule(later_s=st.sampled_from([1.0, 6.0, CACHE_S]))
    def wait(self, later_s: float) -> None:
        self.clock.now_s += later_s

    @rule(passes=st.sampled_from([1, 1, 2, 5, 20]))
    def step(self, passes: int) -> None:
        for _ in range(passes):
            for frame in self.built.engine.step():
                assert isinstance(frame, Delta | Finished | Failed)
                self._told(frame)
            self._check()

    def teardown(self) -> None:
        """All ends, and when the time is over nothing is left anywhere."""
        if not hasattr(self, "built"):
            return
        for _ in range(2000):
            self.step(1)
            if not self.open:
                break
        assert not self.open, "a job waits for ever"
        self.clock.now_s += CACHE_S
        self.step(2)
        assert self.built.engine.idle_s() == math.inf
        assert set(self.rig.cache.cells) == {BLANK}
        assert not any(self.rig.cache.read)
        assert not any(self.rig.cache.windows)

    def _submit(self, job: Job) -> None:
        answered = self.built.submit(job)
        prompt_tokens = len(job.prompt_tokens or [])
        if isinstance(answered, Accepted):
            assert prompt_tokens < CONTEXT
            self.open[job.id] = Answer()
        else:
            assert isinstance(answered, Failed)
            assert (answered.code, prompt_tokens >= CONTEXT) == (FailureCode.TOO_LONG, True)

    def _told(self, frame: Delta | Finished | Failed) -> None:
        answer, job = self.open[frame.job], self.jobs[frame.job]
        answer.add(frame)
        if isinstance(frame, Failed):
            assert frame.code is FailureCode.DEADLINE_EXCEEDED
            assert job.deadline_ms is not None
        elif isinstance(frame, Finished):
            prompt = job.prompt_tokens or []
            assert answer.tokens == expected_answer(prompt, min(job.max_tokens, CONTEXT - len(prompt)))
            self.said.append([*prompt, *answer.tokens])
        if answer.end is not None:
            del self.open[frame.job]

    def _check(self) -> None:
        scheduler, cache = self.built.scheduler, self.rig.cache
        scheduler.check_integrity()
        slots, pages = scheduler.holdings.slots, scheduler.holdings.pages
        for slot in slots.free - slots.unwiped:
            assert (cache.read[slot], cache.windows[slot]) == ([], []), "a free slot holds tokens"
        size = cache.page_tokens
        for page in pages.free - pages.unwiped:
            assert set(cache.cells[page * size : (page + 1) * size]) == {BLANK}, "a free page holds tokens"


def test_each_job_gets_the_answer_that_it_gets_alone_and_nothing_stays(tokenizer: Tokenizer) -> None:
    class Machine(EngineMachine):
        def __init__(self) -> None:
            super().__init__(tokenizer)

    run_state_machine_as_test(
        Machine, settings=settings(max_examples=100, stateful_step_count=50, deadline=None)
    )
