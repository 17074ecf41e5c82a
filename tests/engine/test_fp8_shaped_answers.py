"""Shapes through the FP8 runner and the bundled draft models: on the CPU and, by hand, on an H200."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import jsonschema
import pytest
import torch

from sparkle.engine.settings import default_model
from sparkle.model.config import read_config
from sparkle.schemas.answer import FinishReason
from sparkle.schemas.ids import new_job_id
from sparkle.schemas.job import Job, Sampling
from sparkle.text.shape import Shape
from sparkle.text.tokenizer import Tokenizer
from tests.engine.bundle import Answer
from tests.engine.test_fp8_answers import jobs
from tests.engine.test_fp8_draft_models import engine
from tests.model.driver import CPU
from tests.model.tiny import Tiny
from tests.shapes import of_schema, vocabulary

SAMPLINGS = (
    Sampling(temperature=1.5, top_k=0, seed=2),
    Sampling(temperature=0.0, logprobs=1),
    Sampling(temperature=1.5, repetition_penalty=1.1, seed=3),
)
SCHEMA: dict[str, object] = {
    "type": "object",
    "properties": {
        "verdict": {"enum": ["benign", "malicious"]},
        "score": {"type": "integer", "minimum": 0, "maximum": 99},
        "reasons": {"type": "array", "items": {"type": "string", "maxLength": 12}, "maxItems": 2},
    },
    "required": ["verdict", "score"],
    "additionalProperties": False,
}


def asked_of(prompts: int, *, max_tokens: int) -> tuple[list[Job], dict[str, Shape]]:
    """Of each prompt one that is kept to the schema for each way to draw, and a plain one."""
    config, tokenizer = read_config(default_model()), Tokenizer.load(default_model())
    tokens = vocabulary(config.vocab_size, config.end_tokens)
    asked, shapes = list[Job](), dict[str, Shape]()
    for job in jobs(Tiny.load())[:prompts]:
        asked.append(job.evolve(id=new_job_id(), max_tokens=max_tokens))
        for place, sampling in enumerate(SAMPLINGS):
            made = job.evolve(id=new_job_id(), sampling=sampling, max_tokens=max_tokens)
            # the last one thinks first, of which nobody knows when it would end
            thinks = place == len(SAMPLINGS) - 1
            shapes[made.id] = of_schema(
                SCHEMA,
                tokens,
                begins_after=tokenizer.added_tokens["</think>"] if thinks else None,
                lead_in=tuple(tokenizer.encode("\n\n")) if thinks else (),
                complete=True,
            )
            asked.append(made)
    return asked, shapes


def check(asked: Sequence[Job], shapes: Mapping[str, Shape], answers: Sequence[Answer]) -> None:
    for job, answer in zip(asked, answers, strict=True):
        if job.id not in shapes:
            continue
        assert answer.finished.finish_reason is FinishReason.STOP
        text = answer.text.rpartition("</think>")[2]
        jsonschema.validate(json.loads(text), SCHEMA)


def run(name: str, device: torch.device, *, prompts: int, max_tokens: int, draft_tokens: int) -> None:
    """At this temperature the order of sums turns choices: what is equal to what, exact models show."""
    asked, shapes = asked_of(prompts, max_tokens=max_tokens)
    found = engine(name, device, slots=4, pass_tokens=100, draft_tokens=draft_tokens).run(
        *asked, shapes=shapes
    )
    check(asked, shapes, found)
    for source in (name, "forced"):
        assert sum(answer.finished.drafts.get(source, [0, 0, 0])[2] for answer in found) > 0


@pytest.mark.parametrize("name", ["mtp", "dflash2"])
def test_answers_are_valid_whatever_guesses(name: str) -> None:
    run(name, CPU, prompts=1, max_tokens=22, draft_tokens=7)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["mtp", "dflash2"])
def test_on_a_gpu_too(gpu: torch.device, name: str) -> None:
    """Masks come from pinned memory while the graph runs, of guesses once they are made."""
    run(name, gpu, prompts=3, max_tokens=60, draft_tokens=7)
