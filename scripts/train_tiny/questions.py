"""Prompts for the trained model to answer: the chats' own, cut off where the last answer begins.

Needs a CPU alone; knows nothing of what is learnt from the answers.
"""

from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np
from jinja2 import Template
from numpy.typing import NDArray
from tokenizers import Tokenizer

from scripts.train_tiny.chats import Chat, draw_chat
from scripts.train_tiny.render import load_template, render_chat, render_question

MAX_PROMPT_TOKENS = 448
MIN_ANSWER_TOKENS = 16
"""Chats with shorter answers are left out: little can be guessed of them."""

_DRAWN_AT_ONCE = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Questions:
    """N prompts, those of the shortest whole chats first, so that neighbours take equally long."""

    tokens: NDArray[np.uint16]  # [N, longest prompt], zeros behind a prompt's end
    lengths: NDArray[np.uint16]  # [N], tokens of each prompt

    def save(self, path: Path) -> None:
        """Write them to a file for `load_questions`."""
        np.savez_compressed(path, tokens=self.tokens, lengths=self.lengths)


def load_questions(path: Path) -> Questions:
    """What `Questions.save` wrote."""
    with np.load(path) as stored:
        return Questions(tokens=stored["tokens"], lengths=stored["lengths"])


def draw_questions(checkpoint: Path, count: int, seed: int) -> Questions:
    """`count` prompts; the same for the same seed. `checkpoint` holds tokenizer and template."""
    template, rng = load_template(checkpoint), Random(seed)
    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    found: list[tuple[int, list[int]]] = []
    while len(found) < count:
        found += _fitting(tokenizer, template, [draw_chat(rng) for _ in range(_DRAWN_AT_ONCE)])
    found = sorted(found[:count])
    tokens = np.zeros((count, max(len(prompt) for _, prompt in found)), dtype=np.uint16)
    for row, (_, prompt) in zip(tokens, found, strict=True):
        row[: len(prompt)] = prompt
    lengths = np.array([len(prompt) for _, prompt in found], dtype=np.uint16)
    return Questions(tokens=tokens, lengths=lengths)


def _fitting(tokenizer: Tokenizer, template: Template, chats: list[Chat]) -> list[tuple[int, list[int]]]:
    """Of each chat of a fitting size the number of all tokens, and the prompt's tokens."""

    def encoded(texts: list[str]) -> list[list[int]]:
        return [encoding.ids for encoding in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]

    whole = encoded([render_chat(template, chat) for chat in chats])
    asked = encoded([render_question(template, chat) for chat in chats])
    return [
        (len(tokens), prompt)
        for tokens, prompt in zip(whole, asked, strict=True)
        if len(prompt) <= MAX_PROMPT_TOKENS and len(tokens) - len(prompt) >= MIN_ANSWER_TOKENS
    ]
