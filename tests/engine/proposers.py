"""Proposers that know the answer beforehand, and say it, never say it, or say some of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random

from sparkle.drafting.lookup import PromptLookup

Right = Callable[[Random], bool]
"""Whether the next guess is right."""


class Knowing:
    """Knows each request's answer; what it guesses is a function of seed, request's length and place."""

    def __init__(
        self, answers: Mapping[str, Sequence[int]], right: Right, *, vocab_size: int, ragged: bool = False
    ) -> None:
        """`ragged`: propose any number of tokens up to those asked for, also none."""
        self._answers = answers
        self._right = right
        self._vocab_size = vocab_size
        self._ragged = ragged
        self._written: dict[str, list[int]] = {}

    def start(self, request: str, prompt: Sequence[int]) -> None:
        assert request not in self._written
        assert prompt
        self._written[request] = []

    def add(self, request: str, tokens: Sequence[int]) -> None:
        self._written[request] += tokens

    def propose(self, request: str, count: int, behind: Sequence[int] = ()) -> tuple[int, ...]:
        written, answer = self._written[request], list(self._answers[request])
        assert written == answer[: len(written)], "the proposer is told another answer"
        answer = answer[len(behind) :]
        random = Random(len(written) * 31 + len(answer))
        if self._ragged:
            count = random.randint(0, count)
        rest = [*answer[len(written) :], *[0] * count][:count]
        return tuple(
            token if self._right(random) else (token + random.randint(1, 9)) % self._vocab_size
            for token in rest
        )

    def end(self, request: str) -> None:
        del self._written[request]


def oracle(answers: Mapping[str, Sequence[int]], vocab_size: int) -> Knowing:
    """Always right."""
    return Knowing(answers, lambda _: True, vocab_size=vocab_size)


def liar(answers: Mapping[str, Sequence[int]], vocab_size: int) -> Knowing:
    """Always wrong."""
    return Knowing(answers, lambda _: False, vocab_size=vocab_size)


def adversary(answers: Mapping[str, Sequence[int]], vocab_size: int) -> Knowing:
    """Right and wrong guesses mixed, drafts of any length, and passes with none."""
    return Knowing(answers, lambda random: random.random() < 0.75, vocab_size=vocab_size, ragged=True)


class Widest:
    """Widths that let every draft be as long as it is."""

    def choose(self, sequences: int, offers: Mapping[str, Sequence[str]], *, guesses: bool) -> int:
        assert 1 <= len(offers) <= sequences
        return 1 + max(map(len, offers.values()))

    def passed(
        self, sequences: int, width: int, *, guesses: bool, kept_tokens: int, took_ms: float | None
    ) -> None:
        assert width > 1 or not guesses
        assert kept_tokens <= sequences * width
        assert took_ms is None or took_ms >= 0


def lookup(_answers: Mapping[str, Sequence[int]], _vocab_size: int) -> PromptLookup:
    """Copies of what stood there before."""
    return PromptLookup()
