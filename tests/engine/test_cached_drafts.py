"""Drafts of a request that goes on from a checkpoint: the bundled model in float32, with each draft model."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from sparkle.drafting.lookup import PromptLookup
from sparkle.engine.loaded_cpu import LoadedCpu
from sparkle.engine.sampler import Sampler
from sparkle.engine.settings import NO_DRAFT_MODEL, OWN_HEAD, Device, EngineSettings, default_model
from sparkle.engine.stopwatch import Stopwatch
from sparkle.model.config import read_config
from sparkle.model.shapes import bundled_draft_model
from sparkle.schemas.job import Job
from sparkle.text.tokenizer import Tokenizer
from tests.engine.bundle import GREEDY, Answer, Bundle, engine_around, max_pages
from tests.engine.test_fp8_answers import ANSWER_TOKENS, jobs
from tests.model.tiny import Tiny

DRAFT_MODELS = {"none": NO_DRAFT_MODEL, "mtp": OWN_HEAD, "dflash2": str(bundled_draft_model())}
GOOD_SHARE = 0.7
"""As many guesses are right as where all was read, but for a few: their context is in the checkpoint."""


def engine(draft_model: str, *, cache_s: float) -> Bundle:
    """Guesses of seven tokens in each pass; without a draft model copies."""
    config, tokenizer = read_config(default_model()), Tokenizer.load(default_model())
    sizes = EngineSettings(
        slots=4,
        pass_tokens=256,
        kv_tokens=4096,
        max_context_tokens=512,
        cache_s=cache_s,
        draft_tokens=7,
        draft_model=DRAFT_MODELS[draft_model],
    ).sizes(Device.CPU)
    made = LoadedCpu(default_model(), config, sizes, Stopwatch())
    runner = made.runner(Sampler(tokenizer.vocab_size), max_pages=max_pages(config, sizes))
    return engine_around(runner, config, tokenizer, sizes, PromptLookup() if draft_model == "none" else None)


def accepted(answers: Sequence[Answer]) -> int:
    return sum(answer.finished.accepted_tokens for answer in answers)


@pytest.mark.parametrize("draft_model", DRAFT_MODELS)
@pytest.mark.parametrize("given", [1, 7])
def test_follow_ups_are_those_without_cache_and_guessed_as_well(draft_model: str, given: int) -> None:
    warm, cold = (engine(draft_model, cache_s=cache_s) for cache_s in (600.0, 0.0))
    asked = jobs(Tiny.load())
    answers = [answer.tokens for answer in cold.run(*asked)]
    assert accepted([cold.answers[job.id] for job in asked]) > 0
    assert [one.tokens for one in warm.run(*(job.evolve(max_tokens=given) for job in asked))] == [
        answer[:given] for answer in answers
    ]
    follow_ups = [
        Job(
            prompt_tokens=[*(job.prompt_tokens or []), *answer[:given]],
            max_tokens=ANSWER_TOKENS - given,
            sampling=GREEDY,
        )
        for job, answer in zip(asked, answers, strict=True)
    ]
    again = warm.run(*follow_ups)
    assert [one.tokens for one in again] == [answer[given:] for answer in answers]
    # all but the last token of the answer, which was drawn and not read
    read = [len(job.prompt_tokens or []) - 1 for job in follow_ups]
    assert [one.finished.cached_tokens for one in again] == read
    assert accepted(again) >= GOOD_SHARE * accepted(cold.run(*follow_ups))
