"""What was measured, as it is kept: each case once, with all that its figure depends on."""

from __future__ import annotations

import json
from collections import Counter

from bench.record import RESULTS, row

ROWS = [
    json.loads(line)
    for file in sorted(RESULTS.glob("*.jsonl"))
    for line in file.read_text(encoding="utf-8").splitlines()
]


def test_each_case_has_one_row() -> None:
    cases = Counter(kept["case"] for kept in ROWS)
    assert cases
    assert [case for case, count in cases.items() if count > 1] == []


def test_each_row_has_the_fields_of_a_row() -> None:
    fields = set(row("case", 1.0, "ms", None, (1.0, 1.0), gpu=None, commit="0"))
    assert [kept["case"] for kept in ROWS if set(kept) != fields] == []
