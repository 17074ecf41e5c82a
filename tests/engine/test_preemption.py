"""An answer that gave way is the one it would have been: same tokens, same draws, nothing told again."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import pytest

from sparkle.drafting.proposer import Proposer
from sparkle.engine.settings import EngineSettings
from sparkle.schemas.job import Job, Sampling
from sparkle.text.tokenizer import Tokenizer
from tests.engine.bundle import GREEDY, Answer, Bundle, bundle
from tests.engine.draft_models import Beside, DFlashBeside, MtpBeside
from tests.engine.proposers import lookup
from tests.engine.small_model import small_decoder
from tests.engine.test_draft_models import Drafting

SETTINGS = EngineSettings(
    slots=2, pass_tokens=64, page_tokens=8, kv_tokens=2048, threads=1, cached_slots=3, draft_tokens=0
)
LONG = [
    Job(
        prompt_tokens=[30 + place % 7 for place in range(50)],
        max_tokens=250,
        sampling=Sampling(temperature=0.7, seed=3, logprobs=2, frequency_penalty=0.3),
    ),
    Job(prompt_tokens=[40 + place * place % 11 for place in range(21)], max_tokens=240, sampling=GREEDY),
]
"""Of class p1."""
SHORT = [Job(prompt_tokens=[9 + number] * 5, max_tokens=3, sampling=GREEDY) for number in range(4)]


@dataclasses.dataclass
class Clock:
    """A tenth of a second later each time."""

    now_s: float = 0.0

    def __call__(self) -> float:
        self.now_s += 0.1
        return self.now_s


@pytest.fixture(scope="module")
def expected(tokenizer: Tokenizer) -> list[Answer]:
    """Undisturbed, without drafts."""
    answers = bundle(small_decoder(tokenizer), tokenizer, SETTINGS).run(*LONG)
    assert min(len(answer.tokens) for answer in answers) > 100
    return answers


def interrupt(built: Bundle) -> list[Answer]:
    """The long ones, beside short ones that come when both slots are taken."""
    for job in LONG:
        built.submit(job)
    for least, shorter in ((5, SHORT[:2]), (40, SHORT[2:])):
        while min(len(built.answers.get(job.id, Answer()).tokens) for job in LONG) < least:
            built.step()
        for job in shorter:
            built.submit(job)
    while built.engine.has_work:
        built.step()
    assert built.scheduler.preempted >= 3
    return [built.answers[job.id] for job in LONG]


def check(found: Sequence[Answer], expected: Sequence[Answer]) -> None:
    """Deltas join up: `Bundle` sees to that."""
    for answer, one in zip(found, expected, strict=True):
        assert answer.tokens == one.tokens
        assert answer.text == one.text
        assert answer.finished.cached_tokens == 0
        assert answer.finished.completion_tokens == len(one.tokens)


@pytest.mark.parametrize("draft_tokens", [0, 5])
@pytest.mark.parametrize(("cached_slots", "cache_s"), [(3, 600.0), (0, 600.0), (3, 0.0)])
def test_from_a_checkpoint_or_read_again(
    tokenizer: Tokenizer, expected: list[Answer], cached_slots: int, cache_s: float, draft_tokens: int
) -> None:
    settings = dataclasses.replace(
        SETTINGS, cached_slots=cached_slots, cache_s=cache_s, draft_tokens=draft_tokens
    )
    proposer: Proposer | None = lookup({}, tokenizer.vocab_size) if draft_tokens else None
    check(interrupt(bundle(small_decoder(tokenizer), tokenizer, settings, proposer, Clock())), expected)


@pytest.mark.parametrize("cache_s", [600.0, 0.0])
@pytest.mark.parametrize("model", ["mtp", "dflash2"])
def test_with_a_draft_model_whose_context_is_kept_or_made_again(
    tokenizer: Tokenizer, tmp_path: Path, expected: list[Answer], model: str, cache_s: float
) -> None:
    beside: Beside = MtpBeside(tokenizer) if model == "mtp" else DFlashBeside(tokenizer, tmp_path)
    settings = dataclasses.replace(SETTINGS, cache_s=cache_s, draft_tokens=3)
    made = Drafting(beside, tokenizer, settings, clock=Clock())
    check(interrupt(made.bundle), expected)
    made.check([*LONG, *SHORT], least=60)
