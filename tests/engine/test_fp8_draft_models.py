"""The FP8 engine with the bundled draft models: the same answers, on the CPU and, by hand, on an H200."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from sparkle.engine.settings import OWN_HEAD, EngineSettings
from sparkle.model.shapes import bundled_draft_model
from sparkle.schemas.ids import new_job_id
from sparkle.schemas.job import Job, Sampling
from tests.engine.bundle import Answer, Bundle
from tests.engine.loaded import load
from tests.engine.test_fp8_answers import jobs
from tests.model.driver import CPU
from tests.model.tiny import Tiny

DRAFT_MODELS = {"mtp": OWN_HEAD, "dflash2": str(bundled_draft_model())}
SAMPLINGS = (
    Sampling(temperature=0.0),
    Sampling(temperature=0.7, seed=2),
    Sampling(temperature=0.0, logprobs=1),
    Sampling(temperature=0.5, repetition_penalty=1.1, seed=3),
)
"""Two that are drawn in the pass, and two behind it."""
GOOD_SHARE = 0.4
"""Of the guesses at least so many are right: trained models guess well where they are told all they must."""


def engine(
    name: str | None, device: torch.device = CPU, *, slots: int, pass_tokens: int, draft_tokens: int
) -> Bundle:
    """With the draft model called `name`, or without drafts."""
    settings = EngineSettings(
        slots=slots,
        pass_tokens=pass_tokens,
        kv_tokens=4096,
        max_context_tokens=512,
        draft_tokens=0 if name is None else draft_tokens,
        draft_model=None if name is None else DRAFT_MODELS[name],
    )
    return load(settings, device)[0]


def asked_of(prompts: int, *, max_tokens: int) -> list[Job]:
    """So many prompts, each drawn in each way."""
    return [
        job.evolve(id=new_job_id(), sampling=sampling, max_tokens=max_tokens)
        for job in jobs(Tiny.load())[:prompts]
        for sampling in SAMPLINGS
    ]


def right_share(answers: Sequence[Answer], name: str) -> float:
    """Of the draft model's guesses those that were kept."""
    counts = [answer.finished.drafts.get(name, [0, 0, 0]) for answer in answers]
    return sum(kept for _, _, kept in counts) / sum(drafted for _, drafted, _ in counts)


def test_the_answers_are_those_without_a_draft_model() -> None:
    """In one batch; prompts are read in pieces or as wholes."""
    asked = asked_of(1, max_tokens=6)
    plain = engine(None, slots=2, pass_tokens=60, draft_tokens=0).run(*asked)
    for name, pass_tokens in (("mtp", 60), ("dflash2", 300)):
        found = engine(name, slots=2, pass_tokens=pass_tokens, draft_tokens=3).run(*asked)
        assert [answer.tokens for answer in found] == [answer.tokens for answer in plain]
        assert right_share(found, name) > GOOD_SHARE


@pytest.mark.gpu
def test_on_a_gpu_too(gpu: torch.device) -> None:
    """Guessed, drawn and accepted in graphs; twice to the token."""
    asked = asked_of(3, max_tokens=20)
    plain = engine(None, gpu, slots=8, pass_tokens=300, draft_tokens=0).run(*asked)
    for name, draft_tokens in (("mtp", 3), ("dflash2", 7)):
        drafting = engine(name, gpu, slots=8, pass_tokens=300, draft_tokens=draft_tokens)
        found = drafting.run(*asked)
        again = drafting.run(*(job.evolve(id=new_job_id()) for job in asked))
        for answers, expected in ((found, plain), (again, found)):
            same = [one.tokens == other.tokens for one, other in zip(answers, expected, strict=True)]
            # widths follow the clock, and the order of sums the widths: that may turn a tie
            assert sum(same) >= len(same) - 1, name
            assert right_share(answers, name) > GOOD_SHARE, name
