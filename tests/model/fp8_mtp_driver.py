"""Runs sequences through the FP8 decoder and its draft head as the engine would."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from sparkle.model.config import ModelConfig
from sparkle.model.fp8_batch import PromptBatch, VerifyBatch
from sparkle.model.fp8_decoder import Fp8Decoder
from sparkle.model.fp8_mtp import Fp8Mtp
from sparkle.model.fp8_weights import Fp8DecoderWeights
from sparkle.model.mtp_chain import ChainStart, chain_start
from sparkle.model.taps import Taps
from tests.model.fp8_driver import Fp8Driver, Running

Span = tuple[Running, Sequence[int]]
SPARE_TOKENS = 20
"""Room for guesses behind every sequence."""


class Fp8MtpDriver(Fp8Driver):
    """Each reads all tokens but the last of a sequence; the head is given the next ones."""

    def __init__(
        self,
        config: ModelConfig,
        weights: Fp8DecoderWeights,
        *,
        device: torch.device,
        draft_vocab_size: int | None = None,
    ) -> None:
        self.decoder = Fp8Decoder(config, weights)
        super().__init__(self.decoder, config, device=device, num_tokens=4096)
        self.mtp = Fp8Mtp(config, weights, draft_vocab_size=draft_vocab_size)
        self.batch: PromptBatch | VerifyBatch | None = None
        """The decoder's last."""
        self.hidden = torch.empty(0)
        """The decoder's last, bfloat16 [T, hidden]."""

    def read_both(self, *spans: Span, width: int | None = None) -> tuple[ChainStart, Tensor]:
        """Prompts, maybe in pieces; where drafting begins, and the head's outputs."""
        contexts = [sequence.computed for sequence, _ in spans]
        self.read(*((sequence, tokens[:-1]) for sequence, tokens in spans), width=width)
        return self._head(spans, contexts)

    def verify_both(
        self, *spans: Span, width: int, spare: int = 0, wrong: int = 0
    ) -> tuple[ChainStart, Tensor]:
        """A few tokens each, with `wrong` rejected guesses behind them, and `spare` unused places."""
        contexts = [sequence.computed for sequence, _ in spans]
        guessed = [(sequence, [*tokens[:-1], *[7] * wrong]) for sequence, tokens in spans]
        self.verify(*guessed, width=width, spare=spare, keep=[len(tokens) - 1 for _, tokens in spans])
        return self._head(spans, contexts, wrong=wrong, spare=spare)

    def follow(self, *spans: Span, width: int | None = None) -> Tensor:
        """Prompts, maybe in pieces; the head's outputs of their last rows alone, [S, hidden]."""
        contexts = self._ints([sequence.computed for sequence, _ in spans])
        self.read(*((sequence, tokens[:-1]) for sequence, tokens in spans), width=width)
        batch = self.batch
        assert batch is not None
        following = self._ints([token for _, tokens in spans for token in tokens[1:]])
        return self.mtp.follow(
            dataclasses.replace(batch, token_ids=following),
            self.hidden,
            self.cache,
            contexts=contexts,
            kept=self._ints([len(tokens) - 1 for _, tokens in spans]),
        )

    def draft(self, start: ChainStart, count: int) -> list[list[int]]:
        """`count` guesses behind each place."""
        return [[int(token) for token in row] for row in self.mtp.draft(start, self.cache, count=count)]

    def _head(
        self, spans: Sequence[Span], contexts: list[int], *, wrong: int = 0, spare: int = 0
    ) -> tuple[ChainStart, Tensor]:
        batch = self.batch
        assert batch is not None
        following = [token for _, tokens in spans for token in (*tokens[1:], *[7] * wrong)]
        padding = batch.token_ids.shape[0] - len(following)
        given = dataclasses.replace(batch, token_ids=self._ints([*following, *[0] * padding]))
        outputs = self.mtp.read(given, self.hidden, self.cache)
        kept = self._ints([*(len(tokens) - 1 for _, tokens in spans), *[0] * spare])
        start = chain_start(given, outputs, contexts=self._ints([*contexts, *[0] * spare]), kept=kept)
        return start, outputs[: len(following)]

    def _read(self, batch: PromptBatch, taps: Taps | None) -> Tensor:
        assert taps is None
        self.batch = batch
        logits, self.hidden = self.decoder.read_with_hidden(batch, self.cache)
        return logits

    def _verify(self, batch: VerifyBatch, taps: Taps | None) -> Tensor:
        assert taps is None
        self.batch = batch
        logits, self.hidden = self.decoder.verify_with_hidden(batch, self.cache)
        return logits

    def _places(self, spans: Sequence[Span]) -> tuple[list[int], list[int], list[int]]:
        for sequence, tokens in spans:
            wanted = -(-(sequence.computed + len(tokens) + SPARE_TOKENS) // self.cache.page_tokens)
            sequence.pages += [self._free_pages.pop() for _ in range(wanted - len(sequence.pages))]
        return super()._places(spans)
