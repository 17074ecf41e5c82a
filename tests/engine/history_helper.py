"""A stand-in for a draft model: it remembers what it followed, and holds the runner to the rules.

It guesses what the history model will say, or something else, as it is told.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

import torch
from torch import Tensor

from sparkle.model.dflash_selector import Draws
from sparkle.model.fp8_batch import PromptBatch, VerifyBatch
from sparkle.model.fp8_cache import Fp8Cache
from tests.engine.history_model import HistoryModel, answer_to

MOST_TOKENS = 400


class HistoryHelper:
    """Of each slot the tokens it followed, and the token behind each of them."""

    name = "history"

    def __init__(
        self, model: HistoryModel, vocab_size: int, *, num_slots: int, right: Callable[[Random], bool]
    ) -> None:
        self._model = model
        self._vocab_size = vocab_size
        self._right = right
        self._tokens = torch.zeros(num_slots + 1, MOST_TOKENS, dtype=torch.int64)
        self._behind = torch.zeros(num_slots + 1, MOST_TOKENS, dtype=torch.int64)
        self._lengths = torch.zeros(num_slots + 1, 1, dtype=torch.int64)

    def slot_state(self, slot: int) -> Sequence[Tensor]:
        return self._tokens[slot], self._behind[slot], self._lengths[slot]

    def verify(self, batch: VerifyBatch, cache: Fp8Cache) -> tuple[Tensor, Tensor]:
        return self._model.verify(batch, cache), batch.token_ids.clone()

    def read(self, batch: PromptBatch, cache: Fp8Cache) -> tuple[Tensor, Tensor]:
        return self._model.read(batch, cache), batch.token_ids.clone()

    def propose(self, batch: VerifyBatch, *, count: int, draws: Draws | None) -> Tensor:
        places = len(batch.slots)
        assert count == batch.width - 1
        assert draws is not None
        assert draws.temperatures.shape == (places,)
        assert draws.chances.shape == (places, count)
        guesses = torch.full((places, count), -9)
        for place, slot in enumerate(_ints(batch.slots)):
            if slot < 0:
                continue
            start, stop = _ints(batch.span_starts[place : place + 2])
            context, first = int(batch.contexts[place]), int(batch.token_ids[start])
            assert int(self._lengths[slot]) >= context, "it has not followed all passes"
            # others are asked too, of which one that goes on from a checkpoint knew another token behind it
            if context and stop - start > 1 and int(batch.token_ids[start + 1]) < 0:
                assert int(self._lengths[slot]) == context, "it has followed what was taken back"
                assert int(self._behind[slot, context - 1]) == first, "it was told another token"
            tokens = [*_ints(self._tokens[slot, :context]), first]
            random = Random(context)
            for number, token in enumerate(answer_to(tokens, count, self._vocab_size)):
                wrong = (token + random.randint(1, 9)) % self._vocab_size
                guesses[place, number] = token if self._right(random) else wrong
        return guesses

    def follow(
        self,
        batch: VerifyBatch | PromptBatch,
        outputs: Tensor,
        following: Tensor,
        *,
        contexts: Tensor,
        kept: Tensor,
    ) -> None:
        assert following.shape == outputs.shape == batch.token_ids.shape
        assert all(0 <= token < self._vocab_size for token in _ints(following))
        for place, slot in enumerate(_ints(batch.slots)):
            if slot < 0:
                continue
            start, context, count = int(batch.span_starts[place]), int(contexts[place]), int(kept[place])
            assert 0 <= count <= int(batch.span_starts[place + 1]) - start
            assert int(self._lengths[slot]) >= context, "it has not followed all passes"
            self._tokens[slot, context : context + count] = outputs[start : start + count]
            self._behind[slot, context : context + count] = following[start : start + count]
            self._lengths[slot] = context + count


def _ints(values: Tensor) -> list[int]:
    return [int(value) for value in values]
