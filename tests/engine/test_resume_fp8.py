"""The FP8 engine goes on with another attempt's answer: same tokens, on the CPU and, by hand, on an H200."""

from __future__ import annotations

import pytest
import torch

from sparkle.engine.frames import Accepted
from sparkle.engine.settings import OWN_HEAD, EngineSettings
from sparkle.model.shapes import bundled_draft_model
from sparkle.schemas.job import Job, Sampling
from tests.engine.bundle import Answer
from tests.engine.loaded import load
from tests.engine.test_fp8_answers import ANSWER_TOKENS, CLEAR, jobs
from tests.model.driver import CPU
from tests.model.tiny import Tiny

DRAFT_MODELS = {"none": None, "mtp": OWN_HEAD, "dflash2": str(bundled_draft_model())}
CUTS = (7, 1, ANSWER_TOKENS - 1)
PENALISED = Sampling(temperature=0.0, frequency_penalty=0.1, presence_penalty=0.1, repetition_penalty=1.05)


def check(draft_model: str, device: torch.device, *, num_jobs: int, num_cuts: int) -> None:
    """Each answer from several places on, in an engine that has kept nothing of it."""
    settings = EngineSettings(
        slots=4,
        pass_tokens=256,
        kv_tokens=8192,
        max_context_tokens=512,
        cache_s=0.0,
        draft_tokens=7 if DRAFT_MODELS[draft_model] else 0,
        draft_model=DRAFT_MODELS[draft_model],
    )
    built, _ = load(settings, device)
    asked = [jobs(Tiny.load())[number] for number in CLEAR]
    asked.insert(0, asked[0].evolve(id=Job(prompt="a").id, sampling=PENALISED))
    for job in asked[:num_jobs]:
        (whole,) = built.run(job)
        assert len(whole.tokens) == ANSWER_TOKENS
        for cut in CUTS[:num_cuts]:
            built.answers[job.id] = Answer()
            assert isinstance(built.submit(job, answered=whole.tokens[:cut]), Accepted)
            while built.engine.has_work:
                built.step()
            found = built.answers[job.id]
            assert (found.tokens, found.text) == (whole.tokens, whole.text)
            assert found.finished.completion_tokens == ANSWER_TOKENS


def test_it_goes_on_with_the_same_tokens() -> None:
    check("none", CPU, num_jobs=1, num_cuts=1)


@pytest.mark.gpu
@pytest.mark.parametrize("draft_model", DRAFT_MODELS)
def test_on_a_gpu_too(draft_model: str, gpu: torch.device) -> None:
    check(draft_model, gpu, num_jobs=9, num_cuts=9)
