"""The outbox's steps by hand, its invariants in random histories, and a simulated queue that loses things."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sparkle.errors import ConfigError
from sparkle.producers.outbox import Expire, Look, Outbox, OutboxTiming, Publish, Step

TIMING = OutboxTiming()


def no_jitter() -> float:
    return 0.0


def outbox_with(job: str = "a", *, deadline_s: float | None = None) -> Outbox:
    outbox = Outbox(TIMING, no_jitter)
    outbox.add(job, now_s=0.0, deadline_s=deadline_s)
    return outbox


def waiting_outbox() -> Outbox:
    outbox = outbox_with()
    outbox.due(0.0)
    outbox.stored("a", 0.0)
    return outbox


def test_a_new_job_is_published_at_once_and_only_once() -> None:
    outbox = outbox_with()
    assert outbox.next_due_s() == 0.0
    assert outbox.due(0.0) == [Publish("a", 1)]
    assert outbox.due(100.0) == []
    assert outbox.next_due_s() is None


def test_an_uncertain_publish_is_repeated_under_the_same_number_with_doubling_waits() -> None:
    outbox = outbox_with()
    now_s = 0.0
    for wait_s in (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0):
        assert outbox.due(now_s) == [Publish("a", 1)]
        outbox.again("a", now_s)
        assert outbox.next_due_s() == pytest.approx(now_s + wait_s)
        assert outbox.due(now_s + wait_s * 0.99) == []
        now_s += wait_s * 1.001


def test_a_silent_job_is_looked_up_after_15_30_60_and_60_seconds() -> None:
    outbox = waiting_outbox()
    now_s = 0.0
    for publication, wait_s in enumerate((15.0, 30.0, 60.0, 60.0), start=2):
        assert outbox.next_due_s() == pytest.approx(now_s + wait_s)
        now_s += wait_s
        assert outbox.due(now_s) == [Look("a")]
        outbox.missing("a", now_s)
        assert outbox.due(now_s) == [Publish("a", publication)]
        outbox.already_queued("a", now_s)


def test_a_sign_of_life_starts_the_silence_anew() -> None:
    outbox = waiting_outbox()
    outbox.due(15.0)
    outbox.missing("a", 15.0)
    outbox.due(15.0)
    outbox.already_queued("a", 15.0)
    outbox.sign_of_life("a", 20.0)
    assert outbox.next_due_s() == 35.0


def test_a_double_of_the_first_publication_is_looked_up_at_once() -> None:
    outbox = outbox_with()
    outbox.due(0.0)
    outbox.already_queued("a", 1.0)
    assert outbox.due(1.0) == [Look("a")]
    outbox.missing("a", 1.0)
    assert outbox.due(1.0) == [Publish("a", 2)]
    outbox.already_queued("a", 1.0)
    assert outbox.due(15.9) == []


def test_a_sign_of_life_settles_an_uncertain_publish() -> None:
    outbox = outbox_with()
    outbox.due(0.0)
    outbox.again("a", 0.0)
    outbox.sign_of_life("a", 0.05)
    assert outbox.due(10.0) == []
    assert outbox.next_due_s() == pytest.approx(15.05)


def test_a_sign_of_life_during_a_lookup_makes_its_report_too_late() -> None:
    outbox = waiting_outbox()
    assert outbox.due(15.0) == [Look("a")]
    outbox.sign_of_life("a", 15.1)
    outbox.missing("a", 15.2)
    assert outbox.due(16.0) == []


def test_a_failed_lookup_is_repeated_and_publishes_nothing() -> None:
    outbox = waiting_outbox()
    assert outbox.due(15.0) == [Look("a")]
    outbox.again("a", 15.0)
    assert outbox.next_due_s() == pytest.approx(15.1)
    assert outbox.due(15.2) == [Look("a")]


def test_after_a_reconnect_waiting_jobs_are_looked_up_soon() -> None:
    outbox = Outbox(TIMING, lambda: 0.5)
    outbox.add("a", now_s=0.0)
    outbox.due(0.0)
    outbox.stored("a", 0.0)
    outbox.reconnected(3.0)
    assert outbox.next_due_s() == 3.25
    assert outbox.due(3.25) == [Look("a")]


def test_a_lost_job_is_published_again_only_when_its_worker_had_time_to_show_itself() -> None:
    outbox = waiting_outbox()
    outbox.reconnected(3.0)
    assert outbox.due(3.0) == [Look("a")]
    outbox.missing("a", 3.1)
    assert outbox.due(7.9) == []
    assert outbox.due(8.0) == [Publish("a", 2)]


def test_a_worker_that_shows_itself_in_time_keeps_a_lost_job() -> None:
    outbox = waiting_outbox()
    outbox.reconnected(3.0)
    outbox.due(3.0)
    outbox.missing("a", 3.1)
    outbox.sign_of_life("a", 7.0)
    assert outbox.due(21.9) == []
    assert outbox.due(22.0) == [Look("a")]


def test_a_publish_under_way_during_a_reconnect_is_looked_up_when_it_is_stored() -> None:
    outbox = outbox_with()
    outbox.due(0.0)
    outbox.reconnected(1.0)
    outbox.stored("a", 2.0)
    assert outbox.due(2.0) == [Look("a")]


def test_a_deadline_ends_the_job_in_any_phase() -> None:
    for steps in range(4):
        outbox = outbox_with(deadline_s=20.0)
        if steps >= 1:
            outbox.due(0.0)
        if steps >= 2:
            outbox.stored("a", 0.0)
        if steps >= 3:
            outbox.due(16.0)
        assert outbox.due(20.0) == [Expire("a")]
        assert len(outbox) == 0
        assert outbox.next_due_s() is None


def test_reports_on_unknown_jobs_change_nothing() -> None:
    outbox = outbox_with()
    for report in (outbox.stored, outbox.already_queued, outbox.missing, outbox.again, outbox.sign_of_life):
        report("b", 0.0)
    outbox.remove("b")
    assert "b" not in outbox
    assert "a" in outbox
    assert len(outbox) == 1


def test_settings_are_checked_with_both_numbers() -> None:
    with pytest.raises(ConfigError, match=r"silence_s is 90\.0 .* silence_max_s, 60\.0"):
        OutboxTiming(silence_s=90.0)
    with pytest.raises(ConfigError, match=r"lost_grace_s is -1 but"):
        OutboxTiming(lost_grace_s=-1)
    with pytest.raises(ConfigError, match=r"jitter_share is -0\.1"):
        OutboxTiming(jitter_share=-0.1)


class OutboxHistory(RuleBasedStateMachine):
    """Any order of reports, signs, reconnects and waits; the invariants are checked after each."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.outbox = Outbox(TIMING, random.Random(0).random)
        self.under_way: dict[str, Step] = {}
        self.number: dict[str, int] = {}
        self.lookups: dict[str, int] = {}
        self.count = 0

    @rule()
    def add(self) -> None:
        job = f"job{self.count}"
        self.count += 1
        self.outbox.add(job, now_s=self.now_s)
        self.number[job], self.lookups[job] = 1, 0

    @rule(wait_s=st.sampled_from([0.0, 0.01, 0.3, 5.0, 20.0, 100.0]))
    def wait(self, wait_s: float) -> None:
        self.now_s += wait_s
        for step in self.outbox.due(self.now_s):
            assert step.job not in self.under_way, "one step of a job at a time"
            self.under_way[step.job] = step
            if isinstance(step, Publish):
                risen = step.publication - self.number[step.job]
                assert risen == self.lookups[step.job], (
                    "rises with each lookup that found nothing, and only then"
                )
                self.number[step.job], self.lookups[step.job] = step.publication, 0

    @precondition(lambda self: self.under_way)
    @rule(data=st.data())
    def report(self, data: st.DataObject) -> None:
        step = self.under_way.pop(data.draw(st.sampled_from(sorted(self.under_way))))
        if isinstance(step, Publish):
            reports = [self.outbox.stored, self.outbox.already_queued, self.outbox.again]
        else:
            reports = [self.outbox.missing, self.outbox.again]
        reported = data.draw(st.sampled_from(reports))
        if reported == self.outbox.missing:
            self.lookups[step.job] += 1
        reported(step.job, self.now_s)

    @precondition(lambda self: self.number)
    @rule(data=st.data())
    def live(self, data: st.DataObject) -> None:
        job = data.draw(st.sampled_from(sorted(self.number)))
        self.outbox.sign_of_life(job, self.now_s)
        if isinstance(self.under_way.get(job), Look):
            # the lookup's report is void now; the job waits on
            del self.under_way[job]

    @rule()
    def reconnect(self) -> None:
        self.outbox.reconnected(self.now_s)

    @invariant()
    def nothing_is_forgotten(self) -> None:
        if set(self.number) - set(self.under_way):
            due_s = self.outbox.next_due_s()
            assert due_s is not None
            assert due_s <= self.now_s + TIMING.silence_max_s * (1 + TIMING.jitter_share)


TestOutboxHistory = OutboxHistory.TestCase
TestOutboxHistory.settings = settings(max_examples=200, stateful_step_count=30, deadline=None)


class SimulatedQueue:
    """A queue that drops doubles as JetStream does, and one worker; both forget everything when told to."""

    def __init__(self) -> None:
        self.held: set[str] = set()
        self.seen: set[tuple[str, int]] = set()
        self.results: set[str] = set()
        self.runs: dict[str, int] = {}

    def publish(self, job: str, publication: int) -> bool:
        """Whether it was stored; a double is dropped."""
        if (job, publication) in self.seen or job in self.held:
            return False
        self.seen.add((job, publication))
        self.held.add(job)
        return True

    def run_one(self, chance: random.Random) -> None:
        if self.held:
            job = chance.choice(sorted(self.held))
            self.held.remove(job)
            # a worker drops a job whose result is stored: it came between a lookup and a publish
            if job not in self.results:
                self.results.add(job)
                self.runs[job] = self.runs.get(job, 0) + 1

    def lose_everything(self) -> None:
        self.held.clear()
        self.seen.clear()
        self.results.clear()


@given(seed=st.integers(0, 2**32), losses=st.integers(0, 3))
@settings(max_examples=150, deadline=None)
def test_every_job_ends_and_runs_again_only_after_a_loss(seed: int, losses: int) -> None:
    chance = random.Random(seed)
    queue, outbox = SimulatedQueue(), Outbox(TIMING, chance.random)
    jobs = [f"job{number}" for number in range(8)]
    for job in jobs:
        outbox.add(job, now_s=0.0)
    lose_at = {chance.randrange(200) for _ in range(losses)}
    now_s = 0.0
    for turn in range(2000):
        now_s += chance.random()
        if turn in lose_at:
            queue.lose_everything()
            outbox.reconnected(now_s)
        for step in outbox.due(now_s):
            answered = chance.random() < 0.7
            if isinstance(step, Publish):
                stored = queue.publish(step.job, step.publication) if chance.random() < 0.8 else None
                report = outbox.again if stored is None or not answered else outbox.already_queued
                (outbox.stored if stored and answered else report)(step.job, now_s)
            elif not answered:
                outbox.again(step.job, now_s)
            elif step.job in queue.results:
                outbox.remove(step.job)
            else:
                outbox.missing(step.job, now_s)
        if chance.random() < 0.2:
            queue.run_one(chance)
    assert len(outbox) == 0
    assert set(queue.runs) == set(jobs)
    assert max(queue.runs.values()) <= 1 + len(lose_at)
