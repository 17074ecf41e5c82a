"""The FP8 engine goes on from what it kept: the same answers, on the CPU and, by hand, on an H200."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from sparkle.engine.loaded_gpu import LoadedGpu
from sparkle.engine.settings import OWN_HEAD, EngineSettings
from sparkle.model.shapes import bundled_draft_model
from sparkle.schemas.job import Job
from tests.engine.bundle import GREEDY, Bundle
from tests.engine.loaded import load
from tests.engine.test_fp8_answers import ANSWER_TOKENS, jobs
from tests.model.driver import CPU
from tests.model.tiny import Tiny

DRAFT_MODELS = {"none": None, "mtp": OWN_HEAD, "dflash2": str(bundled_draft_model())}
ENDS = [(place, size + more) for place, size in ((0, 128), (1, 64)) for more in (-1, 0, 1)]
"""Of a job its place in `jobs`, and where it ends: at a page's end or beside it."""


@dataclass(frozen=True)
class Rig:
    """An engine and what is in its memory."""

    built: Bundle
    made: LoadedGpu

    @classmethod
    def load(cls, draft_model: str, device: torch.device) -> Rig:
        settings = EngineSettings(
            slots=4,
            pass_tokens=256,
            kv_tokens=8192,
            max_context_tokens=512,
            cached_slots=16,
            draft_tokens=7 if DRAFT_MODELS[draft_model] else 0,
            draft_model=DRAFT_MODELS[draft_model],
        )
        return cls(*load(settings, device))

    @property
    def memory(self) -> list[Tensor]:
        """All that slots and pages hold."""
        cache = self.made.cache
        states = [
            part
            for of in cache.memories
            for part in (of.states, of.columns, of.inputs, of.keys, of.log_decays, of.writes)
        ]
        return [*states, cache.keys.view(torch.uint8), cache.values.view(torch.uint8)]


def follow(job: Job, answer: list[int], given: int) -> Job:
    """The job again, with so much of its answer given."""
    prompt = [*(job.prompt_tokens or []), *answer[:given]]
    return Job(
        prompt_tokens=prompt, max_tokens=len(answer) - given, sampling=GREEDY, conversation=job.conversation
    )


def check(rig: Rig) -> None:
    """First answers, then each again from where another one ended, by two at once; then all is forgotten."""
    asked = [job.evolve(conversation="c") for job in jobs(Tiny.load())]
    answers = [answer.tokens for answer in rig.built.run(*asked)]
    assert [len(answer) for answer in answers] == [ANSWER_TOKENS] * len(asked)
    for place, end in ENDS:
        job, answer = asked[place], answers[place]
        given = end - len(job.prompt_tokens or []) + 1
        first = follow(job, answer[:given], 0)
        assert rig.built.run(first)[0].tokens == answer[:given]
        again = rig.built.run(*(follow(job, answer, given) for _ in range(2)))
        assert [one.tokens for one in again] == [answer[given:]] * 2
        # less than a page is not worth a slot
        cached = end if end >= rig.made.cache.page_tokens else 0
        assert [one.finished.cached_tokens for one in again] == [cached] * 2
    assert all(bool(part.any()) for part in rig.memory)
    rig.built.engine.end_conversation(None, "c")
    assert rig.built.engine.step() == []
    assert not any(bool(part.any()) for part in rig.memory)
    assert not rig.built.engine.has_work


@pytest.mark.parametrize("draft_model", DRAFT_MODELS)
def test_a_follow_up_answers_as_if_all_had_been_read(draft_model: str) -> None:
    check(Rig.load(draft_model, CPU))


@pytest.mark.gpu
@pytest.mark.parametrize("draft_model", DRAFT_MODELS)
def test_on_a_gpu_too(draft_model: str, gpu: torch.device) -> None:
    check(Rig.load(draft_model, gpu))
