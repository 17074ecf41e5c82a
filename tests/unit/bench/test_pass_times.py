"""The formula of a pass's time: by hand, and through the figures it was fitted to."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from bench.pass_times import PassTimes, fitted, latest
from bench.record import RESULTS
from sparkle.engine.plan import PassPlan
from tests.unit.reading_passes import reading

MEASURED = {
    "plain_1x1_33k": 8.0559,
    "plain_8x1_33k": 11.5615,
    "prefill_1x33k": 2.0937,
    "prefill_8x33k": 16.8531,
    "prefill_1x262k": 36.0759,
    "verify_8x8_33k": 13.8143,
    "dense_pass_128": 11.4573,
    "attention_1x1_33k_e4m3": 30.578,
    "attention_8x1_33k_e4m3": 159.954,
    "prefill_attention_8192_behind_24576": 8689.8403,
}
"""All at commit d892b93."""
TIMES = PassTimes(
    base_ms=10.0, sequence_ms=2.0, draft_ms=0.5, context_ms=0.5, few_ms=48.0, row_ms=0.25, key_ms=0.125
)


@pytest.mark.parametrize(
    ("spans", "took_ms"),
    [
        ([(0, 1)], 10.0),
        ([(6, 1)], 10.0 + 6 * 0.5),
        ([(6, 1), (4, 1), (0, 1)], 10.0 + 2 * 2.0 + 10 * 0.5),
        # of 128 rows, and of any fewer, the weights take more
        ([(0, 60)], 48.0 + 60 * 60 / 2 * 0.125),
        # keys: the first 20 rows see 10 each, and one another
        ([(10, 20)], 48.0 + (20 * 10 + 20 * 20 / 2) * 0.125),
        # as many rows as the graph for up to 256 has
        ([(0, 200)], 64.0 + 200 * 200 / 2 * 0.125),
        ([(0, 100), (10, 100)], 64.0 + (2 * 100 * 100 / 2 + 100 * 10) * 0.125),
        # nine tiles
        ([(0, 1025)], 1152 * 0.25 + 1025 * 1025 / 2 * 0.125),
        ([(6, 1), (0, 60)], 13.0 + 48.0 + 225.0),
        ([], 0.0),
    ],
)
def test_by_hand(spans: Sequence[tuple[int, int]], took_ms: float) -> None:
    assert TIMES.ms(reading(*spans)) == pytest.approx(took_ms)


def test_drafts_are_read_by_the_graph() -> None:
    (answer,) = reading((6, 1)).spans
    drafted = PassPlan(spans=(answer.with_draft((0, 0, 0)),))
    assert TIMES.ms(drafted) == pytest.approx(13.0 + 3 * 0.5)
    assert TIMES.graph_ms(3, 12) == pytest.approx(10.0 + 2 * 2.0 + 9 * 0.5)


def test_it_goes_through_what_was_measured() -> None:
    times = fitted(MEASURED)
    assert times.ms(reading((33_000, 1))) == pytest.approx(MEASURED["plain_1x1_33k"])
    assert times.ms(reading(*[(33_000, 1)] * 8)) == pytest.approx(MEASURED["plain_8x1_33k"])
    assert times.ms(reading((0, 33_000))) == pytest.approx(1e3 * MEASURED["prefill_1x33k"], rel=1e-3)
    assert times.ms(reading((0, 262_128))) == pytest.approx(1e3 * MEASURED["prefill_1x262k"], rel=1e-3)


def test_a_prompt_takes_the_same_in_any_chunks() -> None:
    times = fitted(MEASURED)
    chunks = [(0, 8448), (8448, 8448), (16_896, 8448), (25_344, 7656)]
    assert sum(times.ms(reading(chunk)) for chunk in chunks) == pytest.approx(
        times.ms(reading((0, 33_000))), rel=1e-3
    )


def test_it_foretells_what_it_was_not_fitted_to() -> None:
    times = fitted(MEASURED)
    assert 8 * times.ms(reading((0, 33_000))) == pytest.approx(1e3 * MEASURED["prefill_8x33k"], rel=0.01)
    # attention alone, all layers, in chunks of a prompt: 8,192 rows behind 24,576
    attention_ms = 16 * MEASURED["prefill_attention_8192_behind_24576"] / 1e3
    assert times.key_ms * 8192 * (24_576 + 4096) == pytest.approx(attention_ms, rel=0.2)


def test_every_constant_of_the_rows_that_are_kept_costs_something() -> None:
    files = ("engine.jsonl", "sequence_ops.jsonl", "dense_ops.jsonl")
    times = fitted(latest(*(RESULTS / file for file in files)))
    assert min(times.base_ms, times.sequence_ms, times.draft_ms, times.context_ms) > 0
    assert min(times.few_ms, times.row_ms, times.key_ms) > 0


def test_the_latest_row_of_a_case_counts(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(json.dumps({"case": case, "value": value}) for case, value in ROWS))
    assert latest(file) == {"a": 3.0, "b": 2.0}


ROWS = [("a", 1.0), ("b", 2.0), ("a", 3.0)]
