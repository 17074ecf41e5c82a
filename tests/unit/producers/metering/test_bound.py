"""The most that a job can use is never less than what it uses, by the bundled model's own prompts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkle.engine.settings import default_model
from sparkle.producers.metering.bound import most_tokens
from sparkle.schemas.job import MAX_CONTEXT_TOKENS, Job, Thinking, Turn
from sparkle.text.prompt import PromptBuilder
from sparkle.text.template import ChatTemplate
from sparkle.text.tokenizer import Tokenizer

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=100)


@pytest.fixture(scope="module")
def builder() -> PromptBuilder:
    return PromptBuilder(Tokenizer.load(default_model()), ChatTemplate.load(default_model()))


@given(st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=4), st.sampled_from(Thinking))
def test_no_chat_is_longer(builder: PromptBuilder, texts: list[tuple[str, str]], thinking: Thinking) -> None:
    turns = [Turn(role="system", content=texts[0][1])]
    for question, answer in texts:
        turns += [
            Turn(role="user", content=question),
            Turn(role="assistant", content=answer, reasoning=question),
        ]
    job = Job(messages=[*turns, Turn(role="user", content="?")], thinking=thinking, max_tokens=7)
    assert len(builder.build(job)) + 7 <= most_tokens(job)


@given(TEXTS)
def test_no_text_is_longer(builder: PromptBuilder, text: str) -> None:
    job = Job(prompt=text, max_tokens=7)
    assert len(builder.build(job)) + 7 <= most_tokens(job)


def test_a_letter_that_is_longer_when_composed_is_counted_so() -> None:
    # DEVANAGARI LETTER QA has no composed form of its own: 3 bytes become 6
    assert most_tokens(Job(prompt="\u0958", max_tokens=1)) == 7


def test_tokens_are_counted_as_they_are() -> None:
    assert most_tokens(Job(prompt_tokens=[1] * 10, max_tokens=7)) == 17


def test_nothing_uses_more_than_the_longest_context() -> None:
    assert most_tokens(Job(prompt="x" * 2_000_000, max_tokens=7)) == MAX_CONTEXT_TOKENS
