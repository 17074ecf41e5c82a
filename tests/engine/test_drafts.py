"""Drafts change how many tokens a pass writes and nothing else: the bundled model in float32."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random

import pytest
import torch

from scripts.train_tiny.alerts import draw_alert, write_alert
from sparkle.drafting.proposer import Proposer
from sparkle.engine.draft_models import chosen_draft_model
from sparkle.engine.runner import Runner
from sparkle.engine.sampler import Sampler
from sparkle.engine.settings import NO_DRAFT_MODEL, OWN_HEAD, Device, EngineSettings, default_model
from sparkle.model.cache import SequenceCache
from sparkle.model.decoder import Decoder
from sparkle.model.shapes import bundled_draft_model
from sparkle.schemas.answer import FinishReason
from sparkle.schemas.job import Job, Sampling
from sparkle.text.tokenizer import Tokenizer
from tests.engine.bundle import GREEDY, Answer, Bundle, engine_around, max_pages
from tests.engine.proposers import adversary, liar, lookup, oracle
from tests.model.driver import CPU
from tests.model.tiny import Tiny

PROMPTS = 200
PROPOSERS: dict[str, Callable[[Mapping[str, Sequence[int]], int], Proposer]] = {
    "adversary": adversary,
    "liar": liar,
    "oracle": oracle,
    "lookup": lookup,
}
DRAFT_MODELS = {"mtp": OWN_HEAD, "dflash2": str(bundled_draft_model())}
NAMES = [*PROPOSERS, *DRAFT_MODELS]
SAMPLED = Sampling(
    temperature=1.0, top_p=0.95, top_k=50, repetition_penalty=1.1, frequency_penalty=0.2, logprobs=1
)


@dataclass(frozen=True)
class Model:
    """The bundled model, and prompts of the kinds it knows."""

    tiny: Tiny
    tokenizer: Tokenizer

    def engine(
        self,
        *,
        batch: int,
        width: int = 0,
        proposer: Proposer | None = None,
        draft_model: str = NO_DRAFT_MODEL,
    ) -> Bundle:
        """Drafts of up to `width` tokens by a proposer, or by the draft model that the setting names."""
        config = self.tiny.config
        of = EngineSettings(
            slots=batch,
            pass_tokens=160,
            page_tokens=16,
            kv_tokens=2048,
            draft_tokens=width,
            draft_model=draft_model,
        ).sizes(Device.CPU)
        cache = SequenceCache(
            config,
            num_pages=of.num_pages,
            page_tokens=of.page_tokens,
            num_slots=of.state_slots,
            device=CPU,
            dtype=torch.float32,
        )
        decoder, chosen = Decoder(config, self.tiny.weights), chosen_draft_model(of, config)
        runner = Runner(
            decoder,
            cache,
            Sampler(self.tokenizer.vocab_size),
            max_pages=max_pages(config, of),
            helper=None if chosen is None else chosen.in_float32(decoder, self.tiny.weights, cache),
        )
        return engine_around(runner, config, self.tokenizer, of, proposer)

    def jobs(self, count: int, sampling: Sampling, *, short: int = 3, long: int = 17) -> list[Job]:
        """Alerts that are cut off somewhere: the model goes on with them. Every eighth answer is long."""
        found: list[Job] = []
        for seed in range(count):
            random = Random(seed)
            text = write_alert(random, draw_alert(random))
            prompt = self.tokenizer.encode(text)[: 8 + seed % 9]
            one = sampling.model_copy(update={"seed": seed})
            tokens = long if seed % 8 == 3 else short + seed % 2
            found.append(Job(prompt_tokens=prompt, max_tokens=tokens, sampling=one))
        return found


@pytest.fixture(scope="module")
def model() -> Model:
    return Model(Tiny.load(), Tokenizer.load(default_model()))


class Plain:
    """Jobs, and what the engine answers without drafts."""

    def __init__(self, model: Model, jobs: Sequence[Job]) -> None:
        self.model = model
        self.jobs = jobs
        self.answers = {
            job.id: answer for job, answer in zip(jobs, model.engine(batch=8).run(*jobs), strict=True)
        }

    def check(self, name: str, *, width: int, batch: int, jobs: Sequence[Job]) -> list[Answer]:
        """The same jobs with drafts: answers equal in all but when they were written."""
        tokens = {job: answer.tokens for job, answer in self.answers.items()}
        if name in PROPOSERS:
            proposer = PROPOSERS[name](tokens, self.model.tokenizer.vocab_size)
            built = self.model.engine(batch=batch, width=width, proposer=proposer)
        else:
            built = self.model.engine(batch=batch, width=width, draft_model=DRAFT_MODELS[name])
        answers = built.run(*jobs)
        for job, answer in zip(jobs, answers, strict=True):
            expected = self.answers[job.id]
            assert answer.tokens == expected.tokens
            assert answer.texts == expected.texts
            assert answer.finished.finish_reason == expected.finished.finish_reason
            assert logprobs(answer) == [pytest.approx(one, abs=1e-3) for one in logprobs(expected)]
        return answers


def logprobs(answer: Answer) -> list[float]:
    return [entry[0] for delta in answer.deltas for entry in delta.logprobs or []]


def share_of(jobs: Sequence[Job], name: str) -> Sequence[Job]:
    place = NAMES.index(name)
    return jobs[len(jobs) * place // len(NAMES) : len(jobs) * (place + 1) // len(NAMES)]


def spread(jobs: Sequence[Job], name: str) -> list[tuple[int, int, Sequence[Job]]]:
    """Widths from 1 to 15 and batches from 1 to 8, so many jobs each that every job is asked once."""
    start, found = 0, list[tuple[int, int, Sequence[Job]]]()
    case = 3 * NAMES.index(name)
    while start < len(jobs):
        width, batch = 1 + case * 4 % 15, 1 + case * 5 % 8
        found.append((width, batch, jobs[start : start + batch]))
        start, case = start + batch, case + 1
    return found


@pytest.mark.parametrize("name", NAMES)
def test_greedy_answers_to_200_prompts_are_those_without_drafts(model: Model, name: str) -> None:
    """Each proposer answers a sixth of the prompts: all widths and batches are among them."""
    plain = Plain(model, share_of(model.jobs(PROMPTS, GREEDY), name))
    accepted = 0
    for width, batch, jobs in spread(plain.jobs, name):
        answers = plain.check(name, width=width, batch=batch, jobs=jobs)
        check_counts(name, answers)
        accepted += sum(answer.finished.accepted_tokens for answer in answers)
    # a draft model guesses in every pass, and knows some of the answers
    assert accepted > 0 or name not in DRAFT_MODELS


@pytest.mark.parametrize("name", NAMES)
def test_sampled_answers_are_those_without_drafts(model: Model, name: str) -> None:
    plain = Plain(model, share_of(model.jobs(32, SAMPLED), name))
    for width, batch, jobs in spread(plain.jobs, name):
        check_counts(name, plain.check(name, width=width, batch=batch, jobs=jobs))


def check_counts(name: str, answers: Sequence[Answer]) -> None:
    for answer in answers:
        drafted, accepted = answer.finished.drafted_tokens, answer.finished.accepted_tokens
        assert accepted <= min(drafted, len(answer.tokens))
        # the first token comes with the prompt, and the last one allowed is not drafted for
        if name in ("liar", "oracle", *DRAFT_MODELS) and len(answer.tokens) > 2:
            assert drafted > 0
        if name == "liar":
            assert accepted == 0
        # an answer that ends by itself ends inside its draft
        if name == "oracle" and answer.finished.finish_reason is FinishReason.LENGTH:
            assert accepted == drafted


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("name", NAMES)
def test_200_prompts_at_every_width_in_batches_of_every_size(
    model: Model, name: str, sampling: Sampling
) -> None:
    """At each width all prompts are answered, in eighths: one by one, two at a time, and so on."""
    plain = Plain(model, model.jobs(PROMPTS, sampling))
    for width in range(1, 16):
        for batch in range(1, 9):
            # another eighth for each width
            jobs = plain.jobs[(batch + width) % 8 :: 8]
            check_counts(name, plain.check(name, width=width, batch=batch, jobs=jobs))
