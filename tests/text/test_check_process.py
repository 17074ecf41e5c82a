"""The process that checks answers: what it says of several at once, and how long it knows their schemas."""

from __future__ import annotations

import json

import pytest

from sparkle.text.check_process import INVALID, KEPT_S, KEPT_SCHEMAS, UNKNOWN, VALID, Judge

INTEGER, NONE = '{"type": "integer"}', '{"type": 5}'


@pytest.mark.parametrize(
    ("checks", "verdict"),
    [
        ([[INTEGER, "1"]], VALID),
        ([[INTEGER, "1"], ["true", "[]"]], VALID),
        ([[INTEGER, "1"], [INTEGER, '"x"']], INVALID),
        ([[INTEGER, "1"], [INTEGER, "{"]], INVALID),
        ([[NONE, "1"], [INTEGER, "1"]], UNKNOWN),
        ([[NONE, "1"], [INTEGER, "1.5"]], INVALID),
        ([[INTEGER, "[" * 100_000]], UNKNOWN),
        ([], VALID),
    ],
)
def test_one_answer_that_is_not_valid_says_it_for_all(checks: list[list[str]], verdict: bytes) -> None:
    judge = Judge()
    for _ in range(2):
        assert judge.verdict(checks) == verdict


def test_schemas_are_forgotten_in_time_and_are_few() -> None:
    judge = Judge()
    assert judge.forget_old(100.0) is None
    for number in range(KEPT_SCHEMAS + 3):
        judge.verdict([[json.dumps({"const": number}), "1"]])
    assert judge.num_schemas == KEPT_SCHEMAS
    assert judge.forget_old(100.0) == KEPT_S
    assert judge.forget_old(101.0) == KEPT_S - 1
    judge.verdict([[INTEGER, "1"]])
    assert judge.forget_old(100.0 + KEPT_S) is None
    assert judge.num_schemas == 0
    judge.verdict([[INTEGER, "1"]])
    assert judge.forget_old(1_000.0) == KEPT_S
