"""A measured row: the fields that every row has, and its place in its file."""

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


def test_a_row_takes_the_place_of_an_older_one_of_its_case(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "RESULTS", tmp_path)
    for case, value in (("one_ms", 1.0), ("two_ms", 2.0), ("one_ms", 3.0)):
        rows.record(case, value, "ms", None, (value, value), file="broker")
    kept = [json.loads(line) for line in (tmp_path / "broker.jsonl").read_text().splitlines()]
    assert [(row["case"], row["value"]) for row in kept] == [("two_ms", 2.0), ("one_ms", 3.0)]
