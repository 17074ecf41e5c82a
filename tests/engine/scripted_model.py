"""A model that says what it is told: the next token is a function of the last one and its position."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from sparkle.model.cache import SequenceCache
from sparkle.model.decoder import PassBatch

Script = Callable[[int, int], int]
"""(token, position) -> next token."""


def writes(answer: Sequence[int], *, prompt_tokens: int) -> Script:
    """The script that answers any prompt of this length with `answer`, again and again."""
    return lambda _, position: answer[(position - prompt_tokens + 1) % len(answer)]


class ScriptedModel:
    """One logit of 10 a row, all others 0."""

    def __init__(self, vocab_size: int, script: Script) -> None:
        self._vocab_size = vocab_size
        self._script = script
        self.batches: list[PassBatch] = []

    def forward(self, batch: PassBatch, cache: SequenceCache) -> Tensor:
        """Logits float32 [R, vocab]; the cache is left alone."""
        self.batches.append(batch)
        logits = torch.zeros(len(batch.logit_rows), self._vocab_size)
        for place, row in enumerate(batch.logit_rows):
            token, position = int(batch.token_ids[row]), int(batch.positions[0, row])
            logits[place, self._script(token, position)] = 10.0
        return logits
