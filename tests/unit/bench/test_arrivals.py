"""Traces: as given, the same for a seed, as often as asked for, and refused where a number makes no sense."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.arrivals import LOADS, Arrival, Kind, bursts, faster, given, merged, poisson
from sparkle.schemas.priority import PriorityClass

KIND = Kind(300, 100)


def arrival(at_s: float = 0.0, prompt: int = 300, answer: int = 100, most: int = 150) -> Arrival:
    return Arrival(at_s=at_s, prompt_tokens=prompt, answer_tokens=answer, max_answer_tokens=most)


def test_a_given_trace_is_read_in_order_of_time(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_text(
        '{"at_s": 2.5, "prompt_tokens": 7, "answer_tokens": 3, "max_answer_tokens": 4}\n\n'
        '{"at_s": 0.5, "prompt_tokens": 33000, "answer_tokens": 900, "max_answer_tokens": 1500}\n'
    )
    assert given(file) == [arrival(0.5, 33_000, 900, 1500), arrival(2.5, 7, 3, 4)]
    assert [one.priority for one in given(file)] == [PriorityClass.P2, PriorityClass.P0]


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ((-0.1, 1, 1, 1), "at_s is -0.1 but must be at least 0"),
        ((0.0, 0, 1, 1), "prompt_tokens is 0 but must be at least 1"),
        ((0.0, 1, 0, 1), "answer_tokens is 0 but must be 1 to max_answer_tokens, 1"),
        ((0.0, 1, 3, 2), "answer_tokens is 3 but must be 1 to max_answer_tokens, 2"),
    ],
)
def test_a_job_that_cannot_be_is_refused(numbers: tuple[float, int, int, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        arrival(*numbers)


def test_by_chance_they_are_as_many_as_asked_for_and_the_same_for_a_seed() -> None:
    found = poisson(KIND, per_s=20, until_s=100, seed=5)
    # three standard deviations of 2,000
    assert abs(len(found) - 2000) < 135
    assert found == poisson(KIND, per_s=20, until_s=100, seed=5)
    assert found != poisson(KIND, per_s=20, until_s=100, seed=6)
    assert found == sorted(found, key=lambda one: one.at_s)
    assert found[-1].at_s < 100
    assert {min(max(one.prompt_tokens, 150), 450) - one.prompt_tokens for one in found} == {0}
    assert {min(max(one.answer_tokens, 50), 150) - one.answer_tokens for one in found} == {0}


def test_bursts_come_at_once_and_none_at_the_end() -> None:
    found = bursts(KIND, size=2, every_s=4, until_s=12, seed=1)
    assert [one.at_s for one in found] == [0, 0, 4, 4, 8, 8]
    assert [one.at_s for one in bursts(KIND, size=1, every_s=4, until_s=12.5, seed=1)] == [0, 4, 8, 12]


def test_merged_they_keep_their_order_at_the_same_moment() -> None:
    first, second, third = arrival(1.0, prompt=1), arrival(0.5, prompt=2), arrival(1.0, prompt=3)
    assert merged([first], [second, third]) == [second, first, third]


def test_faster_changes_nothing_but_the_times() -> None:
    assert faster([arrival(3.0), arrival(4.0)], 2) == [arrival(1.5), arrival(2.0)]


@pytest.mark.parametrize("name", LOADS)
def test_each_load_has_short_and_long_jobs(name: str) -> None:
    trace = LOADS[name](1)
    longer = PriorityClass.P3 if name == "writing" else PriorityClass.P2
    assert {one.priority for one in trace} == {PriorityClass.P0, longer}
    assert trace == LOADS[name](1)
    assert trace != LOADS[name](2)
