"""Priority classes: the limits are exact, and a longer job never has a better class."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkle.errors import ConfigError
from sparkle.schemas.job import Job, TextPart, Turn
from sparkle.schemas.priority import (
    PriorityClass,
    ServiceRates,
    classify,
    estimate_prompt_tokens,
    service_s,
    target_s,
)
from sparkle.schemas.tools import Tool, ToolCall

RATES = ServiceRates(prefill_tokens_per_s=1000, decode_tokens_per_s=10)
lengths = st.integers(0, 262_144)


@pytest.mark.parametrize(
    ("max_tokens", "expected"),
    [
        (1, "p0"),
        (10, "p0"),
        (11, "p1"),
        (40, "p1"),
        (41, "p2"),
        (160, "p2"),
        (161, "p3"),
        (640, "p3"),
        (641, "p4"),
    ],
)
def test_the_limits_are_powers_of_four_seconds(max_tokens: int, expected: str) -> None:
    assert classify(0, max_tokens, RATES) == expected


@given(lengths, lengths, st.integers(0, 10_000), st.integers(0, 10_000))
def test_monotone_in_both_lengths(prompt: int, answer: int, more_prompt: int, more_answer: int) -> None:
    order = list(PriorityClass)
    shorter = classify(prompt, answer, RATES)
    longer = classify(prompt + more_prompt, answer + more_answer, RATES)
    assert order.index(shorter) <= order.index(longer)


def test_a_class_waits_as_long_as_it_is_served() -> None:
    assert [target_s(priority) for priority in PriorityClass] == [1.0, 4.0, 16.0, 64.0, 256.0]


def test_service_time_is_reading_plus_writing() -> None:
    assert service_s(500, 20, RATES) == 2.5


@pytest.mark.parametrize(
    ("prompt", "answer", "expected"), [(300, 100, "p0"), (33_000, 1_000, "p2"), (100_000, 2_000, "p3")]
)
def test_the_defaults_are_an_h200s(prompt: int, answer: int, expected: str) -> None:
    assert classify(prompt, answer, ServiceRates()) == expected


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan")])
def test_a_rate_is_above_zero(value: float) -> None:
    with pytest.raises(ConfigError, match="decode_tokens_per_s"):
        ServiceRates(decode_tokens_per_s=value)


def test_the_prompt_is_counted_exactly_or_by_bytes() -> None:
    assert estimate_prompt_tokens(Job(prompt_tokens=[1, 2, 3])) == 3
    assert estimate_prompt_tokens(Job(prompt="12345")) == 2
    # two bytes a letter in UTF-8
    assert estimate_prompt_tokens(Job(prompt="äöüß")) == 2
    turns = [Turn(role="user", content=[TextPart(text="1234"), TextPart(text="5678")], reasoning="9")]
    assert estimate_prompt_tokens(Job(messages=turns)) == 3
    call = ToolCall(id="c", name="get", arguments={"a": "ü" * 20})
    called = [*turns, Turn(role="assistant", content="", tool_calls=[call])]
    # 9 bytes, then a name and 48 bytes of JSON
    assert estimate_prompt_tokens(Job(messages=called)) == 3 + 13
    tool = Tool(name="get", description="x" * 40, parameters={"type": "object"})
    assert estimate_prompt_tokens(Job(messages=turns, tools=[tool])) == 18
