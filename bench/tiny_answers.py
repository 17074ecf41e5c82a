"""sparkle-tiny's likeliest answers to alerts that it was not trained on, and what its helpers read of them.

Computed in float32 on the CPU. Knows no drafts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import torch
from torch import Tensor

from scripts.train_tiny.alerts import draw_alert, write_alert
from scripts.train_tiny.chats import phrases
from scripts.train_tiny.evaluate import HELD_OUT_SEED
from sparkle.model.cache import SequenceCache
from sparkle.model.config import ModelConfig, read_config
from sparkle.model.decoder import Decoder, PassBatch
from sparkle.model.shapes import bundled_checkpoint
from sparkle.model.taps import Taps
from sparkle.model.weights import DecoderWeights, load_weights
from sparkle.schemas.job import Job, Turn
from sparkle.text.prompt import PromptBuilder
from sparkle.text.template import ChatTemplate
from sparkle.text.tokenizer import Tokenizer

CPU = torch.device("cpu")
PAGE_TOKENS = 64
QUESTIONS = {"json": "verdict", "prose": "analysis"}
"""Kind of answer to what is asked for, by its name among the chats' phrases."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A prompt with its answer, the end token behind it."""

    tokens: list[int]
    prompt_tokens: int
    hidden: Tensor  # float32 [T, hidden], the model's output for each token, after its final norm
    taps: Tensor  # float32 [T, layers · hidden], what the layers in front of a draft model put out


class Answerer:
    """The bundled model, one prompt at a time."""

    def __init__(self, tapped: Sequence[int], *, max_tokens: int = 256) -> None:
        self.config: ModelConfig = read_config(bundled_checkpoint())
        weights, _ = load_weights(bundled_checkpoint(), self.config, device=CPU, dtype=torch.float32)
        self.weights: DecoderWeights = weights
        self._decoder = Decoder(self.config, weights)
        self._tokenizer = Tokenizer.load(bundled_checkpoint())
        self._prompts = PromptBuilder(self._tokenizer, ChatTemplate.load(bundled_checkpoint()))
        self._tapped = tuple(tapped)
        self._max_tokens = max_tokens

    def ask(self, question: str) -> Answer:
        """The answer to one question of a user."""
        prompt = self._prompt(question)
        cache = one_sequence(self.config, len(prompt) + self._max_tokens)
        tokens, read = list(prompt), 0
        while tokens[-1] not in self.config.end_tokens and len(tokens) < len(prompt) + self._max_tokens:
            logits = self._decoder.forward(rows_of(tokens[read:], read), cache)
            read = len(tokens)
            tokens.append(int(logits[-1].argmax()))
        return self._read(tokens, len(prompt))

    def read(self, question: str, text: str) -> Answer:
        """The same with an answer that is known, quicker."""
        prompt = self._prompt(question)
        answer = [*self._tokenizer.encode(text), self.config.end_tokens[0]]
        return self._read([*prompt, *answer], len(prompt))

    def _prompt(self, question: str) -> list[int]:
        return self._prompts.build(Job(messages=[Turn(role="user", content=question)]))

    def _read(self, tokens: list[int], prompt_tokens: int) -> Answer:
        rows, taps = rows_of(tokens, 0), Taps(self._tapped)
        _, hidden = self._decoder.forward_with_hidden(rows, one_sequence(self.config, len(tokens)))
        self._decoder.forward(rows, one_sequence(self.config, len(tokens)), taps)
        return Answer(tokens=tokens, prompt_tokens=prompt_tokens, hidden=hidden, taps=taps.outputs)


def questions(kind: str, count: int) -> list[str]:
    """`count` held-out questions for one kind of answer, see QUESTIONS."""
    rng = Random(HELD_OUT_SEED)
    forms = phrases()["ask"][QUESTIONS[kind]]
    return [rng.choice(forms).replace("{alert}", write_alert(rng, draw_alert(rng))) for _ in range(count)]


def one_sequence(config: ModelConfig, tokens: int) -> SequenceCache:
    """A cache of one sequence of at most `tokens` tokens, with its pages in order."""
    return SequenceCache(
        config,
        num_pages=-(-tokens // PAGE_TOKENS),
        page_tokens=PAGE_TOKENS,
        num_slots=1,
        device=CPU,
        dtype=torch.float32,
    )


def rows_of(tokens: Sequence[int], context: int, *, spare: int = 0) -> PassBatch:
    """A pass over these tokens of the one sequence behind `context`; its pages have room for `spare` more."""
    pages = -(-(context + len(tokens) + spare) // PAGE_TOKENS)
    return PassBatch(
        token_ids=torch.tensor(tokens, dtype=torch.int64),
        positions=torch.arange(context, context + len(tokens)).expand(3, -1),
        span_starts=torch.tensor([0, len(tokens)]),
        slots=torch.tensor([0]),
        contexts=torch.tensor([context]),
        page_tables=torch.arange(pages, dtype=torch.int32)[None],
        logit_rows=torch.tensor([len(tokens) - 1]),
    )
