"""Cuts token arrays into rows and draws batches of them; says which tokens count for the loss."""

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# what the prompt of a chat weighs in the loss, against 1 for an answer and for plain text
_PROMPT_WEIGHT = 0.1


class Rows:
    """Rows of `length` + 1 tokens, each beginning at the start of a document where documents are short.

    A document that a row cuts off begins the next row, so that each is read whole; one longer than a row goes
    on in the next.
    """

    def __init__(self, tokens: NDArray[np.uint16], end_of_text: int, length: int) -> None:
        self._tokens = tokens
        self._length = length
        starts = np.flatnonzero(tokens == end_of_text) + 1
        rows: list[int] = []
        row = 0
        while row + length + 1 <= len(tokens):
            rows.append(row)
            latest = int(starts[np.searchsorted(starts, row + length, side="right") - 1])
            row = latest if latest > row else row + length
        places = np.arange(len(rows))
        # mixed, so that the first few stand for all sources
        held_out = np.random.default_rng(0).permutation(places[places % 100 == 50])
        self.held_out: list[int] = [rows[place] for place in held_out]
        # neighbours of held-out rows may share a document with them
        self.training: list[int] = [rows[place] for place in places[abs(places % 100 - 50) > 1]]

    def take(self, rows: list[int]) -> NDArray[np.int64]:
        """Tokens [len(rows), length + 1]."""
        return np.stack([self._tokens[row : row + self._length + 1] for row in rows]).astype(np.int64)

    def endless(self, seed: int) -> Iterator[int]:
        """Training rows in a new random order each time around."""
        rng = np.random.default_rng(seed)
        while True:
            yield from (self.training[place] for place in rng.permutation(len(self.training)))


class LossWeights:
    """Weights of the targets, from the tokens alone."""

    def __init__(self, token_ids: dict[str, int]) -> None:
        self._turn = token_ids["<|im_start|>"]
        self._end_of_turn = token_ids["<|im_end|>"]
        self._end_of_text = token_ids["<|endoftext|>"]
        self._assistant = token_ids["assistant"]

    def __call__(self, tokens: Tensor) -> Tensor:
        """Float32 [B, T] for the targets tokens[:, 1:] of int64 [B, T + 1]."""
        places = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)

        def latest(token: int) -> Tensor:
            return torch.where(tokens == token, places, -1).cummax(dim=1).values

        turn, text = latest(self._turn), latest(self._end_of_text)
        role = tokens.gather(1, (turn + 1).clamp(max=tokens.shape[1] - 1))
        # the end of a turn is itself an answer's target, what follows it is not
        ended = torch.nn.functional.pad(latest(self._end_of_turn)[:, :-1], (1, 0), value=-1) > turn
        in_chat = (turn > text) & (turn >= 0)
        in_answer = (role == self._assistant) & (places > turn + 1) & ~ended
        return torch.where(in_chat & ~in_answer, _PROMPT_WEIGHT, 1.0)[:, 1:]
