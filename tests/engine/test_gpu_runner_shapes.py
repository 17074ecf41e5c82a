"""Shapes through the runner of the FP8 decoder: drafts and guesses change no token, and none is refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

import pytest

from sparkle.engine.gpu_runner import GpuRunner
from sparkle.engine.settings import Sizes
from sparkle.schemas.job import Job, Sampling
from sparkle.text.shape import Shape
from sparkle.text.tokenizer import Tokenizer
from tests.engine.bundle import Answer, engine_around, max_pages, sampler_for
from tests.engine.history_helper import HistoryHelper
from tests.engine.history_model import HistoryModel, TokenCache
from tests.engine.proposers import adversary, lookup
from tests.engine.small_model import config_for
from tests.engine.test_gpu_runner_drafts import drafting_sizes
from tests.engine.test_gpu_runner_guesses import always, never, sometimes
from tests.shapes import PERSON, of_lark, of_schema, vocabulary

SAMPLINGS = (
    Sampling(temperature=1.0, top_k=0, top_p=1.0, seed=1),
    Sampling(temperature=0.0),
    Sampling(temperature=1.0, top_k=5, seed=2, logprobs=1),
    Sampling(temperature=0.7, top_k=64, seed=3, presence_penalty=0.5),
    Sampling(temperature=1.5, top_k=20, seed=4),
)
Right = Callable[[Random], bool]


def asked_of(tokenizer: Tokenizer, count: int) -> tuple[list[Job], dict[str, Shape]]:
    """Every third without a shape."""
    config = config_for(tokenizer)
    tokens = vocabulary(config.vocab_size, config.end_tokens)
    made = (
        of_schema(PERSON, tokens, complete=True),
        of_lark('start: WORD ("," WORD)*\nWORD: /[a-z]{1,9}/', tokens),
        of_lark(
            "start: /[ab]{3,30}/ <tool_call> /x/",
            tokens,
            begins_after=tokenizer.added_tokens["</think>"],
            lead_in=tuple(tokenizer.encode("\n\n")),
            complete=True,
        ),
    )
    jobs = [
        Job(
            prompt_tokens=[(seed * 37 + place * 11) % 500 + 10 for place in range(1 + seed * 7 % 40)],
            max_tokens=6 + seed % 30,
            sampling=SAMPLINGS[seed % len(SAMPLINGS)],
        )
        for seed in range(count)
    ]
    return jobs, {job.id: made[place % 3] for place, job in enumerate(jobs) if place % 4}


def answers(
    tokenizer: Tokenizer,
    of: Sizes,
    widths: Sequence[int],
    right: Right | None,
    jobs: Sequence[Job],
    shapes: dict[str, Shape],
    alike: dict[str, list[int]] | None = None,
) -> list[Answer]:
    """With the history helper where `right` says how good it is, and copies of `alike`."""
    config = config_for(tokenizer)
    model = HistoryModel(config.vocab_size)
    cache = TokenCache(config, num_pages=of.num_pages, page_tokens=of.page_tokens, num_slots=of.state_slots)
    helper = None
    if right is not None:
        helper = HistoryHelper(model, config.vocab_size, num_slots=of.state_slots, right=right)
    runner = GpuRunner(
        model,
        cache,
        sampler_for(config, tokenizer, of),
        num_slots=of.slots,
        max_pages=max_pages(config, of),
        widths=widths,
        prompt_rows=(24, 64),
        helper=helper,
    )
    proposer = lookup({}, 0) if alike is None else adversary(alike, tokenizer.vocab_size)
    built = engine_around(runner, config, tokenizer, of, proposer)
    return built.run(*jobs, shapes=shapes)


@dataclass(frozen=True)
class Asked:
    jobs: list[Job]
    shapes: dict[str, Shape]
    expected: dict[str, list[int]]
    """Written without drafts."""


@pytest.fixture(scope="module")
def asked(tokenizer: Tokenizer) -> Asked:
    jobs, shapes = asked_of(tokenizer, 12)
    plain = answers(tokenizer, drafting_sizes(0, slots=4, pass_tokens=80), (1,), None, jobs, shapes)
    return Asked(jobs, shapes, {job.id: answer.tokens for job, answer in zip(jobs, plain, strict=True)})


@pytest.mark.parametrize("right", [None, always, sometimes, never])
@pytest.mark.parametrize(
    ("of", "widths"),
    [
        (drafting_sizes(3, slots=4, pass_tokens=80), (1, 4)),
        # more rows than one graph holds: some drafts take a second one
        (drafting_sizes(15, slots=20, pass_tokens=400), (1, 4, 8, 16)),
    ],
    ids=["usual", "two graphs"],
)
def test_every_answer_is_its_own(
    tokenizer: Tokenizer, asked: Asked, of: Sizes, widths: Sequence[int], right: Right | None
) -> None:
    jobs, expected = asked.jobs, asked.expected
    found = answers(tokenizer, of, widths, right, jobs, asked.shapes, expected)
    assert {job.id: answer.tokens for job, answer in zip(jobs, found, strict=True)} == expected
    shaped = [answer for job, answer in zip(jobs, found, strict=True) if job.id in asked.shapes]
    assert sum(answer.finished.accepted_tokens for answer in shaped) > 30
