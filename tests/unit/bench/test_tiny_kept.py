"""What the bundled model keeps a pass: counted rightly, and no less than it was measured to keep."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
import torch.nn.functional as F

from bench.tiny_answers import Answer, Answerer
from bench.tiny_kept import FirstOf, Guesser, Kept, count_kept, load_answerer, proposers
from scripts.train_tiny.answers import compact, verdict_object
from scripts.train_tiny.evaluate import held_out_questions


@pytest.fixture(scope="module")
def answerer() -> Answerer:
    return load_answerer()


@pytest.fixture(scope="module")
def verdicts(answerer: Answerer) -> list[Answer]:
    """Three JSON verdicts on held-out alerts, right ones: they are what the model says."""
    asked = held_out_questions(3)
    return [answerer.read(question, compact(verdict_object(alert))) for alert, question in asked]


def test_the_known_verdicts_are_the_models_likeliest(answerer: Answerer, verdicts: list[Answer]) -> None:
    for answer in verdicts:
        said = F.linear(answer.hidden, answerer.weights.lm_head).argmax(1)
        assert [int(token) for token in said[answer.prompt_tokens - 1 : -1]] == answer.tokens[
            answer.prompt_tokens :
        ]


@pytest.mark.parametrize(
    ("name", "width", "least"),
    [("mtp", 1, 1.9), ("mtp", 3, 3.7), ("mtp", 15, 13.0), ("dflash2", 3, 3.7), ("dflash2", 15, 12.5)],
)
def test_a_helper_keeps_what_it_was_measured_to_keep(
    answerer: Answerer, verdicts: list[Answer], name: str, width: int, least: float
) -> None:
    make = proposers(answerer)[name]
    kept = [count_kept(answer, make(answer), width) for answer in verdicts]
    assert sum(one.tokens for one in kept) / sum(one.passes for one in kept) >= least
    assert all(one.per_pass <= width + 1 for one in kept)


class Knowing:
    """Guesses `right` tokens of the answer, then one that is wrong."""

    def __init__(self, answer: Answer, right: int) -> None:
        self._answer = answer
        self._right = right

    def draft(self, known: int, count: int) -> Sequence[int]:
        return [*self._answer.tokens[known : known + self._right], -1][:count]


class Silent:
    """Never has a draft."""

    def draft(self, known: int, count: int) -> Sequence[int]:
        return ()


@pytest.mark.parametrize(
    ("guesser", "width", "passes"),
    [("0 right", 15, 9), ("2 right", 15, 3), ("2 right", 1, 5), ("99 right", 15, 1), ("99 right", 3, 3)],
)
def test_passes_are_counted(guesser: str, width: int, passes: int) -> None:
    answer = Answer(
        tokens=list(range(30)), prompt_tokens=20, hidden=torch.zeros(30, 1), taps=torch.zeros(30, 1)
    )
    # the first of the ten comes with the prompt
    knowing = Knowing(answer, int(guesser.split()[0]))
    assert count_kept(answer, knowing, width) == Kept(9, passes)
    silent_first: Guesser = FirstOf(Silent(), knowing)
    assert count_kept(answer, silent_first, width) == Kept(9, passes)
    assert count_kept(answer, Silent(), width) == Kept(9, 9)
