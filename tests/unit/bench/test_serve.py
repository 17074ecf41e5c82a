"""The command line, and every case once on sparkle-tiny's own engine."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from bench.serve import SMALL, Options, figures
from bench.serve_cases import CASES, Shapes
from sparkle.engine.settings import default_model

ALONE = [
    *("ttft_cold_300_s", "answer_1x300_tok_s"),
    *("ttft_seen_300_s", "ttft_follow_up_300_s", "cached_of_seen_300", "cached_of_follow_up_300"),
]
SEVERAL = ["ttft_3x300_last_s", "batch_3x300_12_s", "answer_3x300_tok_s", "gap_3x300_s"]
MIXED = [
    *("mixed_short_ttft_p95_s", "mixed_short_ttft_p50_s", "mixed_short_total_p95_s"),
    *("mixed_long_ttft_last_s", "mixed_longest_gap_s"),
]


def parsed(*arguments: str) -> Options:
    return Options.parse(["--commit", "c", *arguments])[0]


def test_every_case_of_the_small_model() -> None:
    torch.set_num_threads(1)
    found = list(figures(Options([*CASES], SMALL, default_model(), False, [1.0])))
    assert [figure.case for figure in found] == [*ALONE, *MIXED, *SEVERAL]
    by_case = {figure.case: figure for figure in found}
    assert all(figure.floor is None and figure.spread[0] <= figure.value for figure in found)
    assert all(by_case[case].value > 0 for case in (ALONE[0], *ALONE[2:4], *SEVERAL[:2], *MIXED))
    assert by_case["batch_3x300_12_s"].value >= by_case["ttft_3x300_last_s"].value
    # of the same prompt and of a follow-up hardly anything is read again
    assert by_case["cached_of_seen_300"].value > 200
    assert by_case["cached_of_follow_up_300"].value > 300
    assert by_case["mixed_short_ttft_p95_s"].value >= by_case["mixed_short_ttft_p50_s"].value


def test_the_command_line() -> None:
    assert parsed() == Options([*CASES], Shapes(), None, False, [3.0, 1.0])
    given = parsed("--only", "mixed", "alone", "--kept", "5", "--model", "m", "--bus", "--small")
    assert given == Options(["mixed", "alone"], SMALL, Path("m"), True, [5.0])
    assert parsed("--answer-tokens", "20").shapes == Shapes(answer_tokens=20)
    assert Shapes().report == "33k"


def test_the_bus_needs_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parsed("--bus")
    assert "--bus needs --model" in capsys.readouterr().err
