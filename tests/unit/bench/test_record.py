"""A measured row: the fields that every row has, appended to its file."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from bench import record as rows

FIELDS = ["case", "value", "unit", "floor", "spread", "machine", "gpu", "versions", "commit", "date"]


def test_a_row_has_its_fields_and_is_appended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "RESULTS", tmp_path)
    rows.record("one_ms", 1.23456, "ms", 0.5, (1.0, 2.0), file="broker")
    rows.record("two_ms", 2.0, "ms", None, (2.0, 2.0), file="broker", gpu="H200")
    first, second = (json.loads(line) for line in (tmp_path / "broker.jsonl").read_text().splitlines())
    assert list(first) == FIELDS
    assert (first["case"], first["value"], first["floor"], first["spread"]) == (
        "one_ms",
        1.2346,
        0.5,
        [1.0, 2.0],
    )
    assert (second["floor"], second["gpu"]) == (None, "H200")
    assert re.fullmatch(r"\d+ cores, \S.*", first["machine"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", first["date"])
    assert first["versions"]["nats-py"]
