"""The same job writes the same tokens whatever else runs: alone, in company, in any chunks, in any slot."""

from __future__ import annotations

import pytest

from sparkle.engine.settings import EngineSettings
from sparkle.schemas.job import Job, Sampling
from sparkle.text.tokenizer import Tokenizer
from tests.engine.bundle import GREEDY, Bundle, bundle
from tests.engine.small_model import small_decoder

SAMPLINGS = {
    "greedy": GREEDY,
    "default": Sampling(seed=5),
    "wild": Sampling(temperature=2.0, top_k=0, top_p=1.0, seed=6),
    "penalised": Sampling(
        temperature=1.2,
        min_p=0.02,
        repetition_penalty=1.3,
        frequency_penalty=0.5,
        presence_penalty=0.5,
        seed=7,
    ),
}
PROMPT = [(37 * place + 11) % 5000 for place in range(70)]
OTHERS = [
    Job(
        prompt_tokens=[(31 * index + place) % 5000 for place in range(1 + 9 * index)],
        max_tokens=24 - 2 * index,
        sampling=Sampling(seed=index, temperature=index / 4),
    )
    for index in range(7)
]


def engine(tokenizer: Tokenizer, *, slots: int = 8, pass_tokens: int = 64, page_tokens: int = 8) -> Bundle:
    settings = EngineSettings(
        slots=slots, pass_tokens=pass_tokens, page_tokens=page_tokens, kv_tokens=2048, threads=1
    )
    return bundle(small_decoder(tokenizer), tokenizer, settings)


@pytest.mark.parametrize("name", SAMPLINGS)
def test_alone_in_company_and_in_any_chunks(tokenizer: Tokenizer, name: str) -> None:
    job = Job(prompt_tokens=PROMPT, max_tokens=24, sampling=SAMPLINGS[name])
    alone = engine(tokenizer).run(job)[0].tokens
    assert len(alone) == 24
    assert len(set(alone)) > 10, "the test needs an answer that could go another way"
    for pass_tokens in (9, 23, 512):
        assert engine(tokenizer, pass_tokens=pass_tokens).run(job)[0].tokens == alone
    assert engine(tokenizer).run(job, *OTHERS)[0].tokens == alone
    assert engine(tokenizer, pass_tokens=13).run(*OTHERS, job)[-1].tokens == alone
    assert engine(tokenizer, slots=3, page_tokens=5).run(*OTHERS, job)[-1].tokens == alone


def test_a_job_joining_late_changes_nobody(tokenizer: Tokenizer) -> None:
    job = Job(prompt_tokens=PROMPT, max_tokens=24, sampling=SAMPLINGS["default"])
    alone = engine(tokenizer).run(job)[0].tokens
    built = engine(tokenizer)
    built.submit(job)
    for other in OTHERS:
        built.step()
        built.step()
        built.submit(other)
    while built.engine.has_work:
        built.step()
    assert built.answers[job.id].tokens == alone


def test_without_a_seed_the_id_is_the_seed(tokenizer: Tokenizer) -> None:
    wild = Sampling(temperature=2.0, top_k=0, top_p=1.0)
    job = Job(prompt_tokens=PROMPT, max_tokens=20, sampling=wild)
    first = engine(tokenizer).run(job)[0].tokens
    assert engine(tokenizer).run(job, *OTHERS)[0].tokens == first
    other = Job(prompt_tokens=PROMPT, max_tokens=20, sampling=wild)
    assert engine(tokenizer).run(other)[0].tokens != first
