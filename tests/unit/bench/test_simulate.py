"""Simulated time by hand: first tokens, last tokens and gaps of small traces, in each order."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bench.arrivals import Arrival
from bench.first_come import FirstCome, Reading
from bench.simulate import by_class, figures, gpus_needed, orders, targets
from bench.simulated_drafts import SimulatedDrafts
from bench.simulated_gpu import Planner, Served, percentile, replay
from sparkle.engine.plan import PassPlan
from sparkle.engine.scheduler import Scheduler
from sparkle.schemas.priority import PriorityClass


def second_a_row(plan: PassPlan) -> float:
    """One second for each prompt row, and one for all answers together."""
    rows = [len(span.tokens) for span in plan.spans]
    return 1e3 * (sum(count for count in rows if count > 1) + (1 in rows))


def first_come(reading: Reading, pass_tokens: int = 10) -> Callable[[], Planner]:
    return lambda: FirstCome(
        num_slots=4, num_pages=5000, page_tokens=1, pass_tokens=pass_tokens, reading=reading
    )


def scheduler() -> Planner:
    return Scheduler(num_slots=4, num_pages=5000, page_tokens=1, pass_tokens=10, chunk_tokens=80)


def arrival(at_s: float, prompt: int, answer: int, most: int = 20) -> Arrival:
    return Arrival(at_s=at_s, prompt_tokens=prompt, answer_tokens=answer, max_answer_tokens=most)


def seen(jobs: list[Served]) -> list[tuple[float, float, float]]:
    return [(job.waited_s, job.total_s, job.longest_gap_s) for job in jobs]


@pytest.mark.parametrize("planner", [scheduler, first_come(Reading.BESIDE), first_come(Reading.ALONE)])
def test_one_job_alone(planner: Callable[[], Planner]) -> None:
    # 10 rows and 5, then two passes of one
    assert seen(replay([arrival(7.0, 15, 3)], planner, second_a_row)) == [(15.0, 17.0, 1.0)]


@pytest.mark.parametrize("planner", [scheduler, first_come(Reading.BESIDE), first_come(Reading.ALONE)])
def test_who_comes_during_a_pass_waits_for_its_end(planner: Callable[[], Planner]) -> None:
    jobs = replay([arrival(0.0, 5, 1), arrival(1.0, 4, 1)], planner, second_a_row)
    assert seen(jobs) == [(5.0, 5.0, 0.0), (8.0, 8.0, 0.0)]


def test_beside_answers_a_prompt_slows_them_and_alone_it_stops_them() -> None:
    trace = [arrival(0.0, 2, 4), arrival(2.5, 15, 2)]
    # 2 | 3 | 9 rows beside a token, 13 | 6 rows beside the last one, 20 | 21
    beside = replay(trace, first_come(Reading.BESIDE), second_a_row)
    assert seen(beside) == [(2.0, 20.0, 10.0), (17.5, 18.5, 1.0)]
    # 2 | 3 | 10 rows, 13 | 5 rows, 18 | 19 | 20
    alone = replay(trace, first_come(Reading.ALONE), second_a_row)
    assert seen(alone) == [(2.0, 20.0, 16.0), (15.5, 16.5, 1.0)]


def test_the_scheduler_lets_a_short_job_pass_a_long_prompt() -> None:
    trace = [arrival(0.0, 3000, 1, most=300), arrival(5.0, 4, 1)]
    long, short = replay(trace, scheduler, second_a_row)
    # in the next pass: 5 s until its end, and five of the other one's rows with its own
    assert short.waited_s == 14.0
    assert long.waited_s == 3004.0
    _, late = replay(trace, first_come(Reading.BESIDE), second_a_row)
    assert late.waited_s == 2999.0


def test_two_gpus_share_what_comes_at_once() -> None:
    trace = [arrival(0.0, 8, 1), arrival(0.0, 6, 1), arrival(0.0, 2, 1)]
    found = replay(trace, scheduler, second_a_row, gpus=2)
    # the third goes where less is owed
    assert [job.waited_s for job in found] == [8.0, 8.0, 8.0]
    assert [job.waited_s for job in replay(trace, scheduler, second_a_row, gpus=3)] == [8.0, 6.0, 2.0]


def test_a_gpu_that_has_ended_its_jobs_owes_nothing() -> None:
    trace = [arrival(0.0, 2, 1), arrival(0.0, 9, 5), arrival(4.0, 9, 1)]
    found = replay(trace, scheduler, second_a_row, gpus=2)
    assert [job.waited_s for job in found] == [2.0, 9.0, 9.0]


@pytest.mark.parametrize(
    ("percent", "value"), [(0, 1.0), (50, 2.0), (51, 3.0), (75, 3.0), (95, 4.0), (100, 4.0)]
)
def test_a_percentile_is_one_of_the_values(percent: float, value: float) -> None:
    assert percentile([3.0, 1.0, 4.0, 2.0], percent) == value


def test_drafts_write_more_tokens_a_pass_up_to_the_answers_end() -> None:
    def all_right() -> SimulatedDrafts:
        return SimulatedDrafts(8.0, lambda _sequences, width: 1.0 if width < 16 else 9.0)

    def pass_ms(plan: PassPlan) -> float:
        return 1e3 if any(span.draft for span in plan.spans) else 100e3

    for planner in (scheduler, first_come(Reading.BESIDE), first_come(Reading.ALONE)):
        # the prompt with the first token, 8 tokens, 8, and the last two
        assert seen(replay([arrival(0.0, 5, 19)], planner, pass_ms, all_right)) == [(100.0, 103.0, 1.0)]


def test_figures_are_by_class_and_round() -> None:
    trace = [arrival(0.0, 2, 3), arrival(100.0, 4, 1), arrival(200.0, 5, 1, most=300)]
    found = figures([by_class(replay(part, scheduler, second_a_row)) for part in (trace, trace[:1])])
    assert found["p0_first_p50_s"] == [2.0, 2.0]
    assert found["p0_first_p99_s"] == [4.0, 2.0]
    assert found["p0_last_p50_s"] == [4.0, 4.0]
    assert found["p0_gap_p95_s"] == [1.0, 1.0]
    assert found["p1_first_p95_s"] == [5.0]
    assert len(found) == 18


def test_as_many_gpus_as_the_target_asks_for() -> None:
    trace = [arrival(0.0, 10, 1) for _ in range(6)]
    for target_s, gpus in ((60.0, 1), (59.0, 2), (30.0, 2), (29.0, 3), (10.0, 6), (9.0, None)):
        needed = gpus_needed(trace, scheduler, second_a_row, {PriorityClass.P0: target_s})
        assert needed == gpus, target_s


def test_a_class_without_a_target_or_without_jobs_asks_for_none() -> None:
    trace = [arrival(0.0, 10, 1)]
    assert gpus_needed(trace, scheduler, second_a_row, {PriorityClass.P4: 0.0}) == 1
    assert gpus_needed(trace, scheduler, second_a_row, {}) == 1


def test_targets_are_read_and_refused() -> None:
    assert targets(["p0=0.5", "p2=16"]) == {PriorityClass.P0: 0.5, PriorityClass.P2: 16.0}
    for text in ("p0", "p9=1", "p0=soon"):
        with pytest.raises(ValueError, match=r"valid|convert"):
            targets([text])


def test_every_order_serves_every_job_once() -> None:
    trace = [arrival(0.1 * number, 400 * (1 + number % 7), 5 + number % 3) for number in range(60)]
    for planner in orders(2048, 1024).values():
        jobs = replay(trace, planner, lambda plan: 8.0 + 0.05 * plan.num_tokens)
        assert [job.written_tokens for job in jobs] == [one.answer_tokens for one in trace]
