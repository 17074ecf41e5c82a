"""The bench by way of the queue: the figures of a real worker's answers, and prompts seen by one client."""

from __future__ import annotations

import pytest

from bench.serve import SMALL, Options, figures
from bench.serve_bus import bus_server
from bench.serve_load import Asked, Prompts
from sparkle.engine.settings import default_model

pytestmark = [pytest.mark.acceptance, pytest.mark.usefixtures("nats_binary")]


def test_figures_of_a_worker_behind_the_queue() -> None:
    found = list(figures(Options(["alone"], SMALL, default_model(), True, [1.0])))
    by_case = {figure.case: figure for figure in found}
    assert {"ttft_cold_300_s_bus", "answer_1x300_tok_s_bus", "ttft_seen_300_s_bus"} < by_case.keys()
    assert all(figure.spread[0] <= figure.value for figure in found)
    assert by_case["ttft_cold_300_s_bus"].value > 0
    # the worker's engine remembers, and its result says so
    assert by_case["cached_of_seen_300_bus"].value > 200


def test_answers_come_in_the_loads_order() -> None:
    prompts = Prompts(5000, seed=4)
    # of the model's tokens few end an answer, yet some of these answers may end early
    load = [Asked(at_s=at_s, job=prompts.job(20, most)) for at_s, most in ((0.2, 2), (0.0, 5), (0.1, 1))]
    with bus_server("--slots", "2") as server:
        answers = server.answer(load)
    for asked, answered in zip(load, answers, strict=True):
        assert 1 <= len(answered.tokens) <= asked.job.max_tokens
        assert answered.times_s == sorted(answered.times_s)
        assert answered.first_s > 0
    assert len(answers[2].tokens) == 1


def test_where_all_slots_are_taken_a_long_answer_gives_way_to_a_short_one() -> None:
    prompts = Prompts(5000, seed=4)
    # of class p1, and of p0 a second later; with the seeds that they get, the long one is not over by then
    load = [Asked(at_s=0.0, job=prompts.job(20, 300)), Asked(at_s=1.0, job=prompts.job(20, 3))]
    with bus_server("--slots", "1") as server:
        # once it is ready, so that the long one is there first
        server.answer([Asked(at_s=0.0, job=prompts.job(20, 1))])
        long, short = server.answer(load)
    assert 100 < len(long.tokens) <= 300
    assert long.times_s[0] < 1.0 + short.times_s[0]
    assert 1.0 + short.times_s[-1] < long.times_s[-1]
