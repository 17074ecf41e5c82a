"""The runner: what the model is given, and that nothing of an earlier request is left for the next."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from sparkle.engine.draw_state import DrawState
from sparkle.engine.plan import PassPlan, PassResult, Span, Upkeep
from sparkle.engine.runner import Runner
from sparkle.engine.sampler import Sampler
from sparkle.model.cache import SequenceCache
from sparkle.schemas.job import Job
from sparkle.text.tokenizer import Tokenizer
from tests.engine.bundle import GREEDY, SETTINGS, bundle
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
    runner = Runner(model, cache, Sampler(100), max_pages=8)
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
    runner = Runner(model, cache, Sampler(100), max_pages=8)
    runner.run(PassPlan(spans=(span("a", 0, 0, (1,) * 9, (5, 6, 7)),)), states("a"))
    plan = PassPlan(spans=(span("b", 0, 0, (1,), (2,)), span("c", 1, 0, (1,) * 9, (5, 6, 7))))
    runner.run(plan, states("b", "c"))
    assert same(model.batches[-1].page_tables, [[2, -1, -1], [5, 6, 7]])


def test_a_pass_that_only_reads_draws_nothing(cache: SequenceCache) -> None:
    reading = Span(request="a", slot=0, start=0, tokens=(1, 2), pages=(0,), draws=False, fresh=True)
    runner = Runner(ScriptedModel(100, lambda t, _: t), cache, Sampler(100), max_pages=8)
    assert runner.run(PassPlan(spans=(reading,)), {}).drawn == ()


def parts(cache: SequenceCache) -> tuple[Tensor, ...]:
    return cache.keys, cache.values, cache.states, cache.columns


def test_what_became_free_is_zeroed_and_the_rest_left_alone(cache: SequenceCache) -> None:
    for part in parts(cache):
        part.fill_(7.0)
    runner = Runner(ScriptedModel(100, lambda t, _: t), cache, Sampler(100), max_pages=8)
    # also where no pass follows
    upkeep = Upkeep(wiped_slots=(1,), wiped_pages=(2, 6))
    assert runner.run(PassPlan(spans=(), upkeep=upkeep), {}) == PassResult(drawn=())
    for pages in (cache.keys, cache.values):
        assert not pages[:, [2, 6]].any()
        assert bool((pages[:, [0, 1, 3, 4, 5, 7]] == 7.0).all())
    for slots in (cache.states, cache.columns):
        assert not slots[:, 1].any()
        assert bool((slots[:, [0, 2]] == 7.0).all())


def test_copies_are_of_all_that_is_kept_in_the_order_that_the_plan_says(cache: SequenceCache) -> None:
    for number, part in enumerate(parts(cache)):
        part.copy_(torch.arange(part.numel()).view(part.shape) + number)
    before = [part.clone() for part in parts(cache)]
    runner = Runner(ScriptedModel(100, lambda t, _: t), cache, Sampler(100), max_pages=8)
    # what is wiped may be copied to at once, and what was restored is what is saved
    upkeep = Upkeep(
        wiped_slots=(1,), wiped_pages=(4,), page_copies=((3, 4),), restored=((0, 1),), saved=((1, 2),)
    )
    runner.run(PassPlan(spans=(), upkeep=upkeep), {})
    for part, old in zip(parts(cache)[:2], before[:2], strict=True):
        assert torch.equal(part[:, 4], old[:, 3])
        assert torch.equal(part[:, [0, 1, 2, 3, 5, 6, 7]], old[:, [0, 1, 2, 3, 5, 6, 7]])
    for part, old in zip(parts(cache)[2:], before[2:], strict=True):
        assert all(torch.equal(part[:, slot], old[:, 0]) for slot in range(3))


def test_whatever_an_earlier_request_left_behind_does_not_reach_the_next(tokenizer: Tokenizer) -> None:
    """Poisoned when it ends: were any of it read, the output would not be finite, or would change."""
    job = Job(prompt_tokens=list(range(40, 75)), max_tokens=20, sampling=GREEDY)
    settings = dataclasses.replace(SETTINGS, cache_s=0.0)
    clean = bundle(small_decoder(tokenizer), tokenizer, settings).run(job)[0]
    poisoned = bundle(small_decoder(tokenizer), tokenizer, settings)
    # every slot and every page is used
    others = [Job(prompt_tokens=[index] * 150, max_tokens=106, sampling=GREEDY) for index in range(1, 5)]
    for other in others:
        poisoned.submit(other)
    poisoned.step()
    for part in parts(poisoned.cache):
        part.fill_(float("nan"))
    for other in others:
        poisoned.engine.cancel(other.id)
    assert poisoned.run(job)[0].tokens == clean.tokens
    # and after neighbours that ended
    poisoned.run(*[Job(prompt_tokens=[index] * 50, max_tokens=9, sampling=GREEDY) for index in range(1, 9)])
    again = job.evolve(id=Job(prompt="a").id)
    assert poisoned.run(again)[0].tokens == clean.tokens
