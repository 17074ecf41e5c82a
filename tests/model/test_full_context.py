"""sparkle-tiny over the whole of its context: one token far in front still counts, and as it should.

It was trained on rows of 2,048 tokens and finds nothing that stands 8,000 tokens back. So what is asked is
not an answer: the logits of the last token, and what a needle changes of them, are those of the published
implementation.
"""

from __future__ import annotations

import json

import pytest
import torch
from torch import Tensor

from scripts.train_tiny.checkpoint import load_weights
from sparkle.engine.settings import default_model
from sparkle.model.decoder import Decoder
from sparkle.producers.demo_prompts import BRUTE_FORCE
from sparkle.schemas.job import Job, Turn
from sparkle.text.prompt import PromptBuilder
from sparkle.text.template import ChatTemplate
from sparkle.text.tokenizer import Tokenizer
from tests.model.driver import Driver
from tests.model.tiny import Tiny
from tests.unit.tiny_reference import ReferenceModel

CHUNK_TOKENS = 2048
QUESTION_TOKENS = 20
"""At the prompt's end, behind what is said in between."""
IN_BETWEEN = "The backup of host alpha ended and nothing else happened on that day. "
NEEDLES = "203.0.113.9", "203.0.113.8"


@pytest.fixture(scope="module")
def tiny() -> Tiny:
    torch.set_num_threads(1)
    return Tiny.load()


def prompt_with(needle: str, *, tokens: int) -> list[int]:
    """An alert from this address, much that has nothing to do with it, and a question about it."""
    tokenizer = Tokenizer.load(default_model())
    turns = [
        Turn(role="user", content=BRUTE_FORCE.replace(NEEDLES[0], needle)),
        Turn(role="assistant", content="noted"),
        Turn(role="user", content="Which source_ip?"),
    ]
    chat = PromptBuilder(tokenizer, ChatTemplate.load(default_model())).build(Job(messages=turns))
    more = tokenizer.encode(IN_BETWEEN * 700)[: tokens - len(chat)]
    return [*chat[:-QUESTION_TOKENS], *more, *chat[-QUESTION_TOKENS:]]


def last_logits(tiny: Tiny, prompts: list[list[int]]) -> Tensor:
    """Float32 [prompts, vocab], read in chunks beside one another."""
    driver = Driver(Decoder(tiny.config, tiny.weights), tiny.config, num_tokens=2 * 8192, num_slots=2)
    sequences = [driver.start() for _ in prompts]
    logits: list[Tensor] = []
    for start in range(0, len(prompts[0]), CHUNK_TOKENS):
        stop = start + CHUNK_TOKENS
        spans = [(sequence, tokens[start:stop]) for sequence, tokens in zip(sequences, prompts, strict=True)]
        logits = driver.run(*spans)
    return torch.stack([rows[-1] for rows in logits])


def published_logits(prompts: list[list[int]]) -> Tensor:
    """The same by transformers, each prompt at once."""
    config = json.loads((default_model() / "config.json").read_text(encoding="utf-8"))["text_config"]
    model = ReferenceModel(config, load_weights(default_model()))
    return torch.stack([model.logits(torch.tensor([tokens]))[0, -1] for tokens in prompts])


# minutes where other work shares the cores
@pytest.mark.timeout(600)
@torch.inference_mode()
def test_a_needle_at_the_beginning_changes_the_end_as_published(tiny: Tiny) -> None:
    length = tiny.config.max_context_tokens
    assert length == 8192
    prompts = [prompt_with(needle, tokens=length) for needle in NEEDLES]
    differing = [place for place in range(length) if prompts[0][place] != prompts[1][place]]
    assert len(differing) == 1
    assert differing[0] < 100

    ours, published = last_logits(tiny, prompts), published_logits(prompts)
    scale = float(published.std())
    assert float((ours - published).abs().max()) < 1e-4 * scale
    change, wanted = ours[0] - ours[1], published[0] - published[1]
    assert float(wanted.abs().max()) > 1e-2 * scale
    assert float((change - wanted).square().sum()) < 1e-4 * float(wanted.square().sum())
