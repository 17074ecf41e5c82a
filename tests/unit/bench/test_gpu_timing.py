"""A measured figure beside what the hardware allows."""

from __future__ import annotations

import pytest
import torch

from bench.gpu_timing import Figure, print_figures


def figure(value: float, unit: str, floor: float | None) -> Figure:
    return Figure(case="case", value=value, unit=unit, floor=floor, spread=(value, value + 1))


def test_the_share_of_a_time_and_of_a_rate_is_what_was_reached() -> None:
    assert figure(8.0, "ms", 6.0).share == 0.75
    assert figure(600.0, "tok/s", 800.0).share == 0.75
    assert figure(8.0, "ms", None).share is None


def test_no_floor_is_printed_where_there_is_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    print_figures([figure(8.0, "ms", 6.0), figure(8.0, "ms", None)], commit="c")
    first, second, *rows = capsys.readouterr().out.splitlines()
    assert first.split() == ["case", "8.00", "ms", "floor", "6.00", "75.0", "%", "spread", "1.00"]
    assert second.split() == ["case", "8.00", "ms", "spread", "1.00"]
    assert ['"floor": 6.0' in rows[0], '"floor": null' in rows[1]] == [True, True]
