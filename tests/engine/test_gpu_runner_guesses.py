"""Guesses through the runner of the FP8 decoder: what the draft model is asked, and told of every pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkle.drafting.proposer import Proposer
from sparkle.engine.draw_state import DrawState
from sparkle.engine.plan import TO_GUESS, PassPlan, Span
from sparkle.engine.settings import Sizes
from sparkle.schemas.job import Job, Sampling
from sparkle.text.tokenizer import Tokenizer
from tests.engine.bundle import GREEDY, engine_around
from tests.engine.history_model import answer_to
from tests.engine.proposers import adversary
from tests.engine.test_gpu_runner import VOCAB, Rig, config, expected, follows, jobs, sizes, span
from tests.engine.test_gpu_runner_drafts import drafting_sizes

SAMPLINGS = (
    GREEDY,
    # the history model's choice is by far the likeliest: all of these draw it
    Sampling(temperature=0.2, top_k=20, seed=3),
    Sampling(temperature=0.2, top_k=0, seed=4),
    Sampling(temperature=0.0, logprobs=1),
    Sampling(temperature=0.2, top_k=64, min_p=0.01, seed=5),
)


def always(_random: Random) -> bool:
    return True


def sometimes(random: Random) -> bool:
    return random.random() < 0.7


def never(_random: Random) -> bool:
    return False


def sampled_jobs(count: int) -> list[Job]:
    return [job.evolve(sampling=SAMPLINGS[number % len(SAMPLINGS)]) for number, job in enumerate(jobs(count))]


@pytest.mark.parametrize("right", [always, sometimes, never])
@pytest.mark.parametrize(
    ("of", "widths"),
    [
        (drafting_sizes(3, slots=4, pass_tokens=40), (1, 4)),
        (drafting_sizes(15, slots=3, pass_tokens=17, page_tokens=3), (1, 4, 8, 16)),
        (drafting_sizes(1, slots=8, pass_tokens=200, page_tokens=1), (1, 16)),
        # more rows than one graph holds: some drafts take a second one
        (drafting_sizes(15, slots=20, pass_tokens=400), (1, 4, 8, 16)),
    ],
    ids=["usual", "odd", "one guess", "two graphs"],
)
def test_every_answer_is_its_own(
    tokenizer: Tokenizer, of: Sizes, widths: Sequence[int], right: Callable[[Random], bool]
) -> None:
    """Drawn in the graph and outside it, beside prompts in all sizes; slots are taken again and again."""
    asked = sampled_jobs(20)
    rig = Rig(of, widths, right=right, prompt_rows=(24, 64) if of.page_tokens == 8 else ())
    built = engine_around(rig.runner, config(), tokenizer, of)
    found = built.run(*asked)
    assert sum(answer.finished.drafted_tokens for answer in found) > 100
    for job, answer in zip(asked, found, strict=True):
        assert answer.tokens == expected(job)
        # an answer may find the rows taken in each of its passes
        _, drafted, accepted = answer.finished.drafts.get("history", [0, 0, 0])
        assert (drafted, accepted) == (answer.finished.drafted_tokens, answer.finished.accepted_tokens)
        if right is not sometimes:
            assert accepted == (drafted if right is always else 0)
        if job.sampling.logprobs is not None:
            assert all(delta.logprobs for delta in answer.deltas if delta.tokens)


def test_copies_and_guesses_take_turns(tokenizer: Tokenizer) -> None:
    of = drafting_sizes(7, slots=5, pass_tokens=60)
    asked = sampled_jobs(15)
    proposer: Proposer = adversary({job.id: expected(job) for job in asked}, VOCAB)
    built = engine_around(Rig(of, (1, 8), right=sometimes).runner, config(), tokenizer, of, proposer)
    found = built.run(*asked)
    for job, answer in zip(asked, found, strict=True):
        assert answer.tokens == expected(job)
    assert {name for answer in found for name in answer.finished.drafts} == {"history", "test"}


@settings(max_examples=25, deadline=None)
@given(
    prompts=st.lists(st.lists(st.integers(10, VOCAB - 1), min_size=1, max_size=40), min_size=1, max_size=8),
    width=st.integers(1, 15),
    slots=st.integers(1, 5),
    extra=st.integers(1, 60),
    page_tokens=st.integers(1, 9),
    cancelled=st.integers(0, 12),
)
def test_whatever_is_guessed_read_and_cancelled_beside_it(
    tokenizer: Tokenizer,
    prompts: list[list[int]],
    width: int,
    slots: int,
    extra: int,
    page_tokens: int,
    cancelled: int,
) -> None:
    of = drafting_sizes(width, slots=slots, pass_tokens=slots + extra, page_tokens=page_tokens)
    asked = [
        Job(prompt_tokens=prompt, max_tokens=1 + len(prompt) % 30, sampling=SAMPLINGS[place % len(SAMPLINGS)])
        for place, prompt in enumerate(prompts)
    ]
    answers = {job.id: answer_to(job.prompt_tokens or [], job.max_tokens, VOCAB) for job in asked}
    built = engine_around(Rig(of, (1, 4, 8, 16), right=sometimes).runner, config(), tokenizer, of)
    built.run_but_cancel(asked, after_passes=cancelled)
    for job in asked[1:]:
        tokens = built.answers[job.id].tokens
        # the end token of the model may come earlier
        assert tokens == answers[job.id][: len(tokens)]
        assert len(tokens) == job.max_tokens or tokens[-1] in config().end_tokens


def guessing(request: str, slot: int, start: int, last: int, count: int) -> Span:
    return span(request, slot, start, (last,)).with_draft((TO_GUESS,) * count)


def test_a_broken_row_ends_what_counts_and_breaks_only_as_the_first() -> None:
    """In the graph and outside it."""
    for sampling in (GREEDY, Sampling(temperature=0.0, logprobs=0)):
        rig = Rig(sizes(slots=3, pass_tokens=200, kv_tokens=192), (1, 4), right=always)
        states = {name: DrawState(name, sampling, 0, [0], VOCAB) for name in ("a", "b")}
        rig.runner.run(PassPlan(spans=(span("a", 0, 0, [1, 2]), span("b", 1, 0, [7, 8]))), states)
        last, other = follows(1, 2), follows(7, 8)
        first, second = answer_to([1, 2, last], 2, VOCAB)
        rig.model.broken_tokens = {second, other}
        result = rig.runner.run(
            PassPlan(spans=(guessing("a", 0, 2, last, 3), guessing("b", 1, 2, other, 3))), states
        )
        # the row of a's second guess is broken: what the two in front drew stays
        assert [(one.request, one.token) for one in result.drawn] == [("a", first), ("a", second)]
        assert result.broken == ("b",)


def test_given_counts_count_tokens_whatever_they_are() -> None:
    of = sizes(slots=2, pass_tokens=200, kv_tokens=128)
    rig = Rig(of, (1, 4), right=never, given_count=lambda one: len(one.draft))
    states = {"a": DrawState("a", GREEDY, 0, [0], VOCAB)}
    rig.runner.run(PassPlan(spans=(span("a", 0, 0, [1, 2]),)), states)
    last = follows(1, 2)
    result = rig.runner.run(PassPlan(spans=(guessing("a", 0, 2, last, 3),)), states)
    assert len(result.drawn) == 3
    assert states["a"].position == 4
    # what stays in the cache is what was guessed
    read = [1, 2, last, *result.guessed["a"][:2]]
    (drawn,) = rig.runner.run(PassPlan(spans=(span("a", 0, 5, [6]),)), states).drawn
    assert drawn.token == follows(*read, 6)
