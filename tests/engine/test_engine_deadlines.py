"""Jobs that cannot be complete before their deadline are ended as soon as that is certain."""

from __future__ import annotations

import dataclasses

from torch import Tensor

from sparkle.engine.frames import Accepted, Failed
from sparkle.errors import FailureCode
from sparkle.model.cache import SequenceCache
from sparkle.model.decoder import PassBatch
from sparkle.schemas.job import Job
from sparkle.text.tokenizer import Tokenizer
from tests.engine.bundle import GREEDY, SETTINGS, Bundle, bundle
from tests.engine.scripted_model import ScriptedModel, writes
from tests.engine.small_model import config_for

PASS_S = 1.0
"""What each pass takes."""


class TimedModel(ScriptedModel):
    """Time passes only while it runs."""

    now_s = 100.0

    def forward(self, batch: PassBatch, cache: SequenceCache) -> Tensor:
        """As the script says."""
        self.now_s += PASS_S
        return super().forward(batch, cache)


def timed(tokenizer: Tokenizer) -> tuple[Bundle, TimedModel]:
    model = TimedModel(
        config_for(tokenizer).vocab_size, writes(tokenizer.encode("on and on "), prompt_tokens=5)
    )
    # prompts of equal tokens, each of which is to be read
    settings = dataclasses.replace(SETTINGS, cache_s=0.0)
    return bundle(model, tokenizer, settings, clock=lambda: model.now_s), model


def job(prompt_tokens: int, *, deadline_s: float | None, max_tokens: int = 6) -> Job:
    deadline_ms = None if deadline_s is None else int(1000 * deadline_s)
    tokens = [10] * prompt_tokens
    return Job(prompt_tokens=tokens, max_tokens=max_tokens, sampling=GREEDY, deadline_ms=deadline_ms)


def test_an_answer_ends_at_its_deadline_and_the_others_go_on(tokenizer: Tokenizer) -> None:
    built, model = timed(tokenizer)
    hurried, patient = job(5, deadline_s=102.5), job(5, deadline_s=None)
    built.run(hurried, patient)
    failed = built.answers[hurried.id].end
    assert isinstance(failed, Failed)
    assert (failed.code, failed.retryable) == (FailureCode.DEADLINE_EXCEEDED, False)
    # written at 101, 102 and 103: only then has the deadline passed
    assert len(built.answers[hurried.id].tokens) == 3
    assert len(built.answers[patient.id].tokens) == 6
    assert model.now_s == 106.0


def test_a_job_whose_deadline_has_passed_never_runs(tokenizer: Tokenizer) -> None:
    built, model = timed(tokenizer)
    late = job(5, deadline_s=100.0)
    assert isinstance(built.submit(late), Accepted)
    built.step()
    assert isinstance(built.answers[late.id].end, Failed)
    assert not built.engine.has_work
    assert model.batches == []


def test_a_prompt_that_cannot_be_read_in_time_ends_before_it_is_begun(tokenizer: Tokenizer) -> None:
    built, model = timed(tokenizer)
    rows = SETTINGS.pass_tokens or 0
    # beginnings of prompts tell what a full pass takes: until then nothing is certain
    for _ in range(4):
        built.run(job(rows, deadline_s=None, max_tokens=1))
    began_s = model.now_s
    in_time = job(6 * rows + 1, deadline_s=began_s + 6 * PASS_S + 1.5, max_tokens=1)
    too_late = job(6 * rows + 1, deadline_s=began_s + 6 * PASS_S, max_tokens=1)
    built.submit(too_late)
    built.step()
    assert isinstance(built.answers[too_late.id].end, Failed)
    assert model.now_s == began_s
    (answer,) = built.run(in_time)
    assert len(answer.tokens) == 1
    assert model.now_s == began_s + 7 * PASS_S
