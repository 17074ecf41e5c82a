"""500 schemas: valid values are let through, invalid ones are not, and whatever is drawn is valid."""

from __future__ import annotations

import json

import pytest

from sparkle.text.answer_check import AnswerCheck
from tests.text.matched import TINY, Vocabulary
from tests.text.schema_examples import EXAMPLES, Example, examples
from tests.text.spellings import spellings
from tests.text.walks import Walker

SUBJECTS = sorted(path.stem for path in EXAMPLES.glob("*.json"))
STEP = 6
"""Of the examples that others are not enough for, every so many."""


def wrongly_judged(vocabulary: Vocabulary, example: Example) -> list[str]:
    """Values that its grammar, or the check of finished answers, takes for what they are not."""
    grammar, check = vocabulary.compile(example.schema), AnswerCheck(example.schema)
    texts = [(json.dumps(value, ensure_ascii=False), True) for value in example.valid]
    texts += [(text, False) for value in example.invalid for text in spellings(value)]
    return [
        f"{example.name}: {text}"
        for text, valid in texts
        if vocabulary.lets_through(grammar, text) is not valid or check.holds(text) is not valid
    ]


def walk(vocabulary: Vocabulary, of: tuple[Example, ...], *, answers: int) -> tuple[int, list[str]]:
    """How many random answers have ended, and those of them that are not valid."""
    walker = Walker(vocabulary, seed=len(of))
    ended = 0
    wrong: list[str] = []
    for example in of:
        grammar, check = vocabulary.compile(example.schema), AnswerCheck(example.schema)
        for number in range(answers):
            text = walker.answer(grammar, free_tokens=(0, 6, 40)[number % 3], most_tokens=300)
            ended += text is not None
            if text is not None and check.holds(text) is not True:
                wrong.append(f"{example.name}: {text}")
    return ended, wrong


def test_there_are_500_and_each_has_valid_values() -> None:
    assert len(examples()) >= 500
    assert len({json.dumps(example.schema) for example in examples()}) == len(examples())
    assert [example.name for example in examples() if not example.valid] == []


@pytest.mark.parametrize("subject", SUBJECTS)
def test_valid_values_are_let_through_and_invalid_ones_are_not(subject: str) -> None:
    of = [example for example in examples() if example.name.startswith(f"{subject}-")]
    assert [wrong for example in of for wrong in wrongly_judged(TINY, example)] == []


def test_also_with_the_real_tokens(real_vocabulary: Vocabulary) -> None:
    of = examples()[::STEP]
    assert [wrong for example in of for wrong in wrongly_judged(real_vocabulary, example)] == []


def test_whatever_is_drawn_is_valid() -> None:
    of = examples()[::STEP]
    ended, wrong = walk(TINY, of, answers=3)
    assert wrong == []
    assert ended > 0.9 * 3 * len(of)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("tokens", ["tiny", "real"])
def test_all_of_them_many_times(real_vocabulary: Vocabulary, tokens: str) -> None:
    vocabulary = TINY if tokens == "tiny" else real_vocabulary
    assert [wrong for example in examples() for wrong in wrongly_judged(vocabulary, example)] == []
    ended, wrong = walk(vocabulary, examples(), answers=30)
    assert wrong == []
    assert ended > 0.9 * 30 * len(examples())
