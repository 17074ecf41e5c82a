"""sparkle-tiny's answers to the schemas of the tests: hot, with drafts in every pass, several at once."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sparkle.engine.frames import Accepted, Finished
from sparkle.engine.loaded_cpu import LoadedCpu
from sparkle.engine.settings import OWN_HEAD, Device, EngineSettings, default_model
from sparkle.engine.stopwatch import Stopwatch
from sparkle.model.config import read_config
from sparkle.schemas.answer import FinishReason
from sparkle.schemas.job import Job, Sampling
from sparkle.text.answer_check import AnswerCheck
from sparkle.text.tokenizer import Tokenizer
from tests.engine.bundle import Answer, Bundle, engine_around, max_pages, sampler_for
from tests.engine.proposers import lookup
from tests.shapes import of_schema, vocabulary
from tests.text.schema_examples import Example

SLOTS = 8
SETTINGS = EngineSettings(
    slots=SLOTS,
    pass_tokens=256,
    page_tokens=16,
    kv_tokens=4096,
    threads=1,
    draft_tokens=6,
    draft_model=OWN_HEAD,
)
TEMPERATURE = 1.5
MAX_TOKENS = 96
PROMPT_TOKENS = 64


@dataclass(frozen=True)
class Written:
    """An answer and what it was to be."""

    example: Example
    answer: Answer

    @property
    def ended(self) -> bool:
        """Whether it is complete, and did not run into its limit of tokens."""
        end = self.answer.end
        return isinstance(end, Finished) and end.finish_reason is FinishReason.STOP

    @property
    def valid(self) -> bool:
        """Whether it is valid by its numbers and texts, its grammar not asked."""
        return AnswerCheck(self.example.schema).holds(self.answer.text) is True


def tiny_engine() -> Bundle:
    """The bundled model in float32 with its own draft head, and copies of the prompt as drafts."""
    directory = default_model()
    config, tokenizer = read_config(directory), Tokenizer.load(directory)
    loaded = LoadedCpu(directory, config, SETTINGS.sizes(Device.CPU), Stopwatch())
    sampler = sampler_for(config, tokenizer, loaded.sizes)
    runner = loaded.runner(sampler, max_pages=max_pages(config, loaded.sizes))
    return engine_around(runner, config, tokenizer, loaded.sizes, lookup({}, 0))


def answers_to(of: Sequence[Example]) -> Iterator[Written]:
    """An answer for each, as they end; each is told to be complete within its tokens."""
    built = tiny_engine()
    config = read_config(default_model())
    tokens = vocabulary(config.vocab_size, config.end_tokens)
    waiting = list(enumerate(of))[::-1]
    running: dict[str, Example] = {}
    while waiting or running:
        while waiting and len(running) < SLOTS:
            seed, example = waiting.pop()
            job = _job(built.tokenizer, example, seed)
            shape = of_schema(example.schema, tokens, begins_after=None, complete=True)
            assert isinstance(built.submit(job, shape=shape), Accepted)
            running[job.id] = example
        built.step()
        for name in [
            name for name in running if name in built.answers and built.answers[name].end is not None
        ]:
            yield Written(running.pop(name), built.answers.pop(name))


def _job(tokenizer: Tokenizer, example: Example, seed: int) -> Job:
    """Asks for the schema by its text, of which names and values can be copied."""
    return Job(
        prompt_tokens=tokenizer.encode(json.dumps(example.schema, ensure_ascii=False))[:PROMPT_TOKENS],
        max_tokens=MAX_TOKENS,
        sampling=Sampling(temperature=TEMPERATURE, top_k=0, top_p=1.0, seed=seed),
    )
