"""How many tokens sparkle-tiny keeps a pass, on JSON verdicts and on prose: by proposer and width.

The answer is the model's likeliest, so what a pass would keep of a draft is how far the two agree, and one
token more. Run from the repository's root: python -m bench.tiny_kept [--prompts N] [--keep]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Protocol

import torch

from bench.record import record
from bench.tiny_answers import CPU, QUESTIONS, Answer, Answerer, one_sequence, questions, rows_of
from sparkle.drafting.lookup import PromptLookup
from sparkle.model.config import read_config
from sparkle.model.dflash import DFlash
from sparkle.model.dflash_cache import ContextBatch, DFlashCache
from sparkle.model.dflash_config import read_dflash_config
from sparkle.model.dflash_weights import load_dflash_weights
from sparkle.model.mtp import Mtp
from sparkle.model.mtp_chain import chain_start
from sparkle.model.shapes import bundled_checkpoint, bundled_draft_model

WIDTHS = (1, 3, 7, 11, 15)
"""Tokens of a draft."""
DEFAULT = ("mtp", WIDTHS[-1])
"""The engine's own choice: the rows without a proposer's name."""


class Guesser(Protocol):
    """Drafts behind the first tokens of one answer, asked for ever more of them."""

    def draft(self, known: int, count: int) -> Sequence[int]:
        """At most `count` tokens that may follow the first `known`."""
        ...


class Head:
    """The checkpoint's own draft head."""

    def __init__(self, model: Answerer, answer: Answer) -> None:
        self._mtp = Mtp(model.config, model.weights)
        self._answer = answer
        self._cache = one_sequence(model.config, len(answer.tokens) + max(WIDTHS))
        self._read = 0

    def draft(self, known: int, count: int) -> Sequence[int]:
        """See Guesser."""
        answer, contexts = self._answer, torch.tensor([self._read])
        rows = rows_of(answer.tokens[self._read + 1 : known], self._read, spare=max(WIDTHS))
        outputs = self._mtp.read(rows, answer.hidden[self._read : known - 1], self._cache)
        start = chain_start(rows, outputs, contexts=contexts, kept=known - 1 - contexts)
        self._read = known - 1
        return [int(token) for token in self._mtp.draft(start, self._cache, count=count)[0]]


class Block:
    """The DFlash2 draft model."""

    def __init__(self, model: DFlash, cache: DFlashCache, answer: Answer) -> None:
        self._model = model
        self._cache = cache
        self._answer = answer
        self._read = 0
        cache.zero_slot(0)

    def draft(self, known: int, count: int) -> Sequence[int]:
        """See Guesser."""
        rows, slots = known - 1 - self._read, torch.tensor([0])
        batch = ContextBatch(
            span_starts=torch.tensor([0, rows]),
            slots=slots,
            contexts=torch.tensor([self._read]),
            kept=torch.tensor([rows]),
        )
        self._model.extend(self._answer.taps[self._read : known - 1], batch, self._cache)
        self._read = known - 1
        anchor, context = torch.tensor([self._answer.tokens[known - 1]]), torch.tensor([known - 1])
        drafted = self._model.propose(anchor, slots, context, self._cache, rows=count + 1)
        return [int(token) for token in drafted[0]]


class Lookup:
    """Copies from prompt and answer."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._lookup = PromptLookup()
        self._lookup.start("it", [])
        self._read = 0

    def draft(self, known: int, count: int) -> Sequence[int]:
        """See Guesser."""
        self._lookup.add("it", self._answer.tokens[self._read : known])
        self._read = known
        return self._lookup.propose("it", count)


class FirstOf:
    """The first that has a draft."""

    def __init__(self, *guessers: Guesser) -> None:
        self._guessers = guessers

    def draft(self, known: int, count: int) -> Sequence[int]:
        """See Guesser."""
        drafts = (guesser.draft(known, count) for guesser in self._guessers)
        return next((draft for draft in drafts if draft), ())


@dataclass(frozen=True, slots=True)
class Kept:
    """An answer's tokens behind the first, which comes with the prompt, and the passes that wrote them."""

    tokens: int
    passes: int

    @property
    def per_pass(self) -> float:
        return self.tokens / self.passes


def count_kept(answer: Answer, guesser: Guesser, width: int) -> Kept:
    """Writes the answer with drafts of `width` tokens."""
    known, passes = answer.prompt_tokens + 1, 0
    while known < len(answer.tokens):
        draft = guesser.draft(known, width)
        pairs = zip(draft, answer.tokens[known:], strict=False)
        right = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        known = min(known + right + 1, len(answer.tokens))
        passes += 1
    return Kept(len(answer.tokens) - answer.prompt_tokens - 1, passes)


def proposers(model: Answerer) -> Mapping[str, Callable[[Answer], Guesser]]:
    """By name, what drafts for an answer."""
    directory = bundled_draft_model()
    config = read_dflash_config(directory, model.config)
    block = DFlash(
        config,
        load_dflash_weights(directory, config, CPU),
        embedding=model.weights.embedding,
        lm_head=model.weights.lm_head,
    )
    cache = DFlashCache(config, num_slots=1, device=CPU, dtype=torch.float32)
    return {
        "lookup": Lookup,
        "mtp": lambda answer: Head(model, answer),
        "dflash2": lambda answer: Block(block, cache, answer),
        "lookup_mtp": lambda answer: FirstOf(Lookup(answer), Head(model, answer)),
        "lookup_dflash2": lambda answer: FirstOf(Lookup(answer), Block(block, cache, answer)),
    }


def load_answerer() -> Answerer:
    """The bundled model with the layers tapped that its draft model reads."""
    config = read_dflash_config(bundled_draft_model(), read_config(bundled_checkpoint()))
    return Answerer(config.target_layers)


def main() -> None:
    """Print the table, and keep its rows where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=12, help="of each kind; default: %(default)s")
    parser.add_argument("--keep", action="store_true", help="append rows to bench/results/drafting.jsonl")
    arguments = parser.parse_args()
    model = load_answerer()
    for kind in QUESTIONS:
        answers = [model.ask(question) for question in questions(kind, arguments.prompts)]
        for name, make in proposers(model).items():
            for width in WIDTHS:
                kept = [count_kept(answer, make(answer), width) for answer in answers]
                mean = sum(one.tokens for one in kept) / sum(one.passes for one in kept)
                spread = min(one.per_pass for one in kept), max(one.per_pass for one in kept)
                case = f"tiny_kept_{kind}"
                for title in (f"{case}_{name}_{width}", *[case] * ((name, width) == DEFAULT)):
                    print(f"{title:40} {mean:6.2f}  {spread[0]:.2f} to {spread[1]:.2f}", flush=True)
                    if arguments.keep:
                        record(title, mean, "tokens", None, spread, file="drafting")


if __name__ == "__main__":
    main()
