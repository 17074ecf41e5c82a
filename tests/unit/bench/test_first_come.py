"""First come, first served: who reads and writes in each pass, beside answers or alone."""

from __future__ import annotations

import pytest

from bench.first_come import FirstCome, Reading
from sparkle.engine.plan import Drawn, PassResult
from sparkle.engine.request import Request
from sparkle.schemas.priority import PriorityClass

GO_ON, STOP = 0, 1


def planner(reading: Reading = Reading.BESIDE, *, slots: int = 4, pages: int = 100) -> FirstCome:
    return FirstCome(num_slots=slots, num_pages=pages, page_tokens=1, pass_tokens=4, reading=reading)


def add(to: FirstCome, name: str, prompt_tokens: int, max_answer_tokens: int = 2) -> None:
    to.add(
        Request(
            id=name,
            prompt=tuple(range(10, 10 + prompt_tokens)),
            max_answer_tokens=max_answer_tokens,
            stop_tokens=frozenset({STOP}),
            priority=PriorityClass.P0,
            arrived_s=0.0,
        )
    )


def run_pass(of: FirstCome, token: int = GO_ON) -> dict[str, tuple[int, ...]]:
    """What each request read."""
    plan = of.schedule(0.0)
    of.apply(PassResult(drawn=tuple(Drawn(request=s.request, token=token) for s in plan.spans if s.draws)))
    return {span.request: span.tokens for span in plan.spans}


def test_who_came_later_reads_what_is_left_of_the_budget() -> None:
    line = planner()
    add(line, "long", 6)
    add(line, "short", 1)
    assert run_pass(line) == {"long": (10, 11, 12, 13)}
    assert run_pass(line) == {"long": (14, 15), "short": (10,)}
    assert run_pass(line) == {"long": (GO_ON,), "short": (GO_ON,)}
    assert not line.has_work


def test_beside_answers_prompts_have_the_rest_of_the_budget() -> None:
    line = planner()
    add(line, "first", 4, max_answer_tokens=3)
    run_pass(line)
    add(line, "second", 5)
    assert run_pass(line) == {"first": (GO_ON,), "second": (10, 11, 12)}
    assert run_pass(line) == {"first": (GO_ON,), "second": (13, 14)}


def test_alone_answers_wait_until_prompts_are_read() -> None:
    line = planner(Reading.ALONE)
    add(line, "first", 4, max_answer_tokens=3)
    run_pass(line)
    add(line, "second", 5)
    assert run_pass(line) == {"second": (10, 11, 12, 13)}
    assert run_pass(line) == {"second": (14,)}
    assert run_pass(line) == {"first": (GO_ON,), "second": (GO_ON,)}


@pytest.mark.parametrize(("slots", "pages"), [(1, 100), (4, 5)])
def test_without_a_slot_or_pages_the_next_one_waits(slots: int, pages: int) -> None:
    line = planner(slots=slots, pages=pages)
    add(line, "first", 2)
    add(line, "second", 2)
    assert run_pass(line) == {"first": (10, 11)}
    assert run_pass(line) == {"first": (GO_ON,)}
    assert run_pass(line) == {"second": (10, 11)}


def test_a_stop_token_ends_an_answer_early() -> None:
    line = planner()
    add(line, "one", 2, max_answer_tokens=9)
    run_pass(line)
    assert run_pass(line, STOP) == {"one": (GO_ON,)}
    assert not line.has_work
    assert line.schedule(0.0).spans == ()
