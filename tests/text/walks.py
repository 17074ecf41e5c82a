"""Random answers through the masks of a grammar, with drafts that are cut and checked as an engine does."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher

from sparkle.errors import MatcherFailed
from sparkle.text.mask_filler import DraftMasks, MaskFiller, words_of
from sparkle.text.matcher import Matcher
from tests.text.matched import Vocabulary

CLOSING = ('"', "}", "]")
"""Once an answer is to end: what ends its parts, the first that may follow."""
DRAFT_TOKENS = 6
FOLLOWED = 0.7
"""How often the token of a draft is drawn where it is allowed."""
CLOSED = 0.7
"""How often what seems to end a part is drawn, once an answer is to end."""


class Walker:
    """Answers under grammars of one vocabulary."""

    def __init__(self, vocabulary: Vocabulary, seed: int) -> None:
        self._vocabulary = vocabulary
        self._random = random.Random(seed)
        self._filler = MaskFiller(rows=vocabulary.rows, threads=1)
        self._masks = np.zeros((DRAFT_TOKENS + 1, words_of(vocabulary.rows)), dtype=np.int32)
        self._closing = [vocabulary.tokens.tokenize_str(text)[0] for text in CLOSING]
        characters = {vocabulary.tokens.tokenize_str(chr(code))[0] for code in range(0x21, 0x7F)}
        self._characters = sorted(characters)

    def answer(self, grammar: LLMatcher, *, free_tokens: int, most_tokens: int) -> str | None:
        """An answer's text: any token that may follow, from `free_tokens` on one that leads to the end.

        None where it has not ended after `most_tokens`.
        """
        matcher = self._vocabulary.matcher(grammar)
        written: list[int] = []
        while not matcher.ended and len(written) < most_tokens:
            drawn = self._pass(matcher, self._draft(matcher, written), closing=len(written) >= free_tokens)
            matcher.accept(drawn)
            written += drawn
        return self._vocabulary.tokens.decode_str(written[:-1]) if matcher.ended else None

    def _draft(self, matcher: Matcher, written: Sequence[int]) -> list[int]:
        """Forced tokens, or what was written before, or nonsense."""
        guesses = [matcher.forced(), list(written[-DRAFT_TOKENS:]), self._nonsense()]
        return self._random.choice(guesses)[:DRAFT_TOKENS]

    def _nonsense(self) -> list[int]:
        return [self._random.randrange(-1, self._vocabulary.rows) for _ in range(2)]

    def _pass(self, matcher: Matcher, draft: Sequence[int], *, closing: bool) -> list[int]:
        """Draw along a draft until another token is drawn than it has, and one behind it."""
        draft = draft[: matcher.count_allowed(draft)]
        failed = self._filler.fill([DraftMasks(matcher, 0, draft)], self._masks.data)
        if failed:
            raise MatcherFailed("grammar: its state was lost in the middle of a walk")
        drawn: list[int] = []
        for place in range(len(draft) + 1):
            guess = draft[place] if place < len(draft) else None
            drawn.append(self._draw(self._masks[place], guess, closing=closing))
            if drawn[-1] != guess or guess in self._vocabulary.end_tokens:
                break
        return drawn

    def _draw(self, mask: npt.NDArray[np.int32], guess: int | None, *, closing: bool) -> int:
        # a bit at a time where that is enough: of a real vocabulary's tokens a list takes long to make
        held = np.unpackbits(mask.view(np.uint8), bitorder="little")
        ends = [token for token in self._vocabulary.end_tokens if held[token]]
        if closing and ends:
            return ends[0]
        closers = [token for token in self._closing if held[token]]
        # not always: within a text a bracket is a letter, which leads to no end
        if closing and closers and self._random.random() < CLOSED:
            return closers[0]
        # a mask may have less than what is allowed: of bytes that must follow it takes one spelling in tokens
        if guess is not None and held[guess] and self._random.random() < FOLLOWED:
            return guess
        # closing, of one character and no space, if there is one: a number grows by digits alone
        shortest = [token for token in self._characters if held[token]] if closing else []
        if shortest:
            return self._random.choice(shortest)
        allowed = np.flatnonzero(held)
        return int(allowed[self._random.randrange(len(allowed))])
