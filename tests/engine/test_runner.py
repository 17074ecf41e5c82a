"""The runner: what the model is given, and that nothing of an earlier request is left for the next."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sparkle.engine.draw_state import DrawState
from sparkle.engine.plan import PassPlan, Span
from sparkle.engine.runner import Runner
from sparkle.engine.sampler import Sampler
from sparkle.model.cache import SequenceCache
from sparkle.schemas.job import Job
from sparkle.text.tokenizer import Tokenizer
from tests.engine.bundle import GREEDY, bundle
from tests.engine.scripted_model import ScriptedModel
from tests.engine.small_model import config_for, small_decoder


def span(request: str, slot: int, start: int, tokens: tuple[int, ...], pages: tuple[int, ...]) -> Span:
    return Span(
        request=request, slot=slot, start=start, tokens=tokens, pages=pages, draws=True, fresh=start == 0
    )


def states(*requests: str) -> dict[str, DrawState]:
    return {request: DrawState(request, GREEDY, 0, [0], 100) for request in requests}


def same(found: Tensor, expected: list[int] | list[list[int]]) -> bool:
    return torch.equal(found.long(), torch.tensor(expected))


@pytest.fixture
def cache(tokenizer: Tokenizer) -> SequenceCache:
    return SequenceCache(
        config_for(tokenizer),
        num_pages=8,
        page_tokens=4,
        num_slots=3,
        device=torch.device("cpu"),
        dtype=torch.float32,
    )


def test_the_batch_says_what_the_plan_says(cache: SequenceCache) -> None:
    model = ScriptedModel(100, lambda token, _: token + 1)
    runner = Runner(model, cache, Sampler(100), num_slots=3, max_pages=8)
    runner.run(PassPlan(spans=(span("b", 0, 0, (50,) * 6, (5, 6)),)), states("b"))
    reading = Span(request="c", slot=1, start=0, tokens=(60, 61), pages=(7, 1, 2), draws=False, fresh=True)
    plan = PassPlan(
        spans=(
            span("b", 0, 6, (9,), (5, 6)),
            reading,
            span("a", 2, 0, (20, 21, 22, 23, 24), (4, 3)),
        )
    )
    result = runner.run(plan, states("a", "b"))
    assert [(drawn.request, drawn.token) for drawn in result.drawn] == [("b", 10), ("a", 25)]
    batch = model.batches[-1]
    assert same(batch.token_ids, [9, 60, 61, 20, 21, 22, 23, 24])
    assert same(batch.positions, [[6, 0, 1, 0, 1, 2, 3, 4]] * 3)
    assert same(batch.span_starts, [0, 1, 3, 8])
    assert same(batch.slots, [0, 1, 2])
    assert same(batch.contexts, [6, 0, 0])
    # as wide as the longest sequence needs: 7 tokens of 4 a page
    assert same(batch.page_tables, [[5, 6], [7, 1], [4, 3]])
    assert same(batch.logit_rows, [0, 7])


def test_a_slot_reused_by_a_shorter_request_keeps_none_of_the_older_pages(cache: SequenceCache) -> None:
    model = ScriptedModel(100, lambda token, _: token)
    runner = Runner(model, cache, Sampler(100), num_slots=3, max_pages=8)
    runner.run(PassPlan(spans=(span("a", 0, 0, (1,) * 9, (5, 6, 7)),)), states("a"))
    plan = PassPlan(spans=(span("b", 0, 0, (1,), (2,)), span("c", 1, 0, (1,) * 9, (5, 6, 7))))
    runner.run(plan, states("b", "c"))
    assert same(model.batches[-1].page_tables, [[2, -1, -1], [5, 6, 7]])


def test_a_pass_that_only_reads_draws_nothing(cache: SequenceCache) -> None:
    reading = Span(request="a", slot=0, start=0, tokens=(1, 2), pages=(0,), draws=False, fresh=True)
    runner = Runner(ScriptedModel(100, lambda t, _: t), cache, Sampler(100), num_slots=3, max_pages=8)
    assert runner.run(PassPlan(spans=(reading,)), {}).drawn == ()


def test_fresh_requests_get_zeroed_state_and_pages_and_others_are_left_alone(cache: SequenceCache) -> None:
    for part in (cache.keys, cache.values, cache.states, cache.columns):
        part.fill_(7.0)
    runner = Runner(ScriptedModel(100, lambda t, _: t), cache, Sampler(100), num_slots=3, max_pages=8)
    runner.run(PassPlan(spans=(span("a", 1, 0, (1,), (2, 6)),)), states("a"))
    for pages in (cache.keys, cache.values):
        assert not pages[:, [2, 6]].any()
        assert bool((pages[:, [0, 1, 3, 4, 5, 7]] == 7.0).all())
    for slots in (cache.states, cache.columns):
        assert not slots[:, 1].any()
        assert bool((slots[:, [0, 2]] == 7.0).all())
    # the next pass of the same request zeroes nothing
    cache.states.fill_(7.0)
    runner.run(PassPlan(spans=(span("a", 1, 1, (1,), (2, 6)),)), states("a"))
    assert bool((cache.states == 7.0).all())


def test_whatever_an_earlier_request_left_behind_does_not_reach_the_next(tokenizer: Tokenizer) -> None:
    """Poisoned state: were any of it read, the output would not be finite, or would change."""
    job = Job(prompt_tokens=list(range(40, 75)), max_tokens=20, sampling=GREEDY)
    clean = bundle(small_decoder(tokenizer), tokenizer).run(job)[0]
    poisoned = bundle(small_decoder(tokenizer), tokenizer)
    cache = poisoned.cache
    for part in (cache.keys, cache.values, cache.states, cache.columns):
        part.fill_(float("nan"))
    assert poisoned.run(job)[0].tokens == clean.tokens
    # and after real neighbours have used every slot
    others = [Job(prompt_tokens=[index] * 50, max_tokens=9, sampling=GREEDY) for index in range(1, 9)]
    poisoned.run(*others)
    again = job.evolve(id=Job(prompt="a").id)
    assert poisoned.run(again)[0].tokens == clean.tokens
