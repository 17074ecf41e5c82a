"""Runs sequences through decoder and draft head as the engine would, over a cache full of NaN."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sparkle.model.config import ModelConfig
from sparkle.model.decoder import Decoder
from sparkle.model.mtp import Mtp
from sparkle.model.mtp_chain import ChainStart, chain_start
from sparkle.model.weights import DecoderWeights
from tests.model.driver import Driver, Running, batch_of

Span = tuple[Running, Sequence[int]]
SPARE_TOKENS = 20
"""Room for guesses behind every sequence."""


class MtpDriver(Driver):
    """`read` tokens of some sequences, then draft behind them."""

    def __init__(self, config: ModelConfig, weights: DecoderWeights, *, page_tokens: int = 16) -> None:
        self.decoder = Decoder(config, weights)
        super().__init__(self.decoder, config, page_tokens=page_tokens, num_tokens=4096)
        self.mtp = Mtp(config, weights)

    def read(self, *spans: Span, wrong: int = 0) -> tuple[ChainStart, list[Tensor]]:
        """Reads all tokens but the last of each, by the decoder and the head, which is given the next ones.

        The head reads `wrong` rows more of each, of rejected guesses. Returns where drafting begins, and
        each sequence's outputs.
        """
        counts = [len(tokens) - 1 for _, tokens in spans]
        for sequence, tokens in spans:
            wanted = -(-(sequence.computed + len(tokens) + SPARE_TOKENS) // self.page_tokens)
            sequence.pages += [self.free_pages.pop() for _ in range(wanted - len(sequence.pages))]
        batch = batch_of([(sequence, tokens[:-1]) for sequence, tokens in spans])
        _, hidden = self.decoder.forward_with_hidden(batch, self.cache)
        following = [(sequence, [*tokens[1:], *[7] * wrong]) for sequence, tokens in spans]
        rows = [
            torch.cat((part, torch.full((wrong, part.shape[1]), 3.0)))
            for part in hidden.split_with_sizes(counts)
        ]
        given = batch_of(following)
        outputs = self.mtp.read(given, torch.cat(rows), self.cache)
        for (sequence, _), count in zip(spans, counts, strict=True):
            sequence.computed += count
        start = chain_start(given, outputs, contexts=given.contexts, kept=torch.tensor(counts))
        parts = outputs.split_with_sizes([count + wrong for count in counts])
        return start, [part[:count] for part, count in zip(parts, counts, strict=True)]

    def draft(self, start: ChainStart, count: int) -> list[list[int]]:
        """`count` guesses behind each sequence."""
        return [[int(token) for token in row] for row in self.mtp.draft(start, self.cache, count=count)]
