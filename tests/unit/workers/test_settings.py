"""The worker's settings say no with both numbers, and a worker's name can stand in a subject."""

from __future__ import annotations

import pytest
from pydantic import TypeAdapter

from sparkle.errors import ConfigError
from sparkle.schemas.message import Name
from sparkle.workers.settings import WorkerSettings, new_worker_name


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("region", "", "region is missing"),
        ("region", "EU", "region is 'EU' but must be 1 to 63 lower-case letters, digits and dashes"),
        ("name", "a.b", "name is 'a.b' but must be"),
        ("name", "a" * 64, "but must be 1 to 63"),
        ("drain_s", -1.0, "drain_s is -1.0 but must be 0.0 to 86400.0"),
        ("drain_s", float("nan"), "drain_s is nan but must be"),
        ("chunk_window_ms", -0.1, "chunk_window_ms is -0.1 but must be 0.0 to"),
        ("follow_up_wait_ms", -1.0, "follow_up_wait_ms is -1.0 but must be 0.0 to 60000.0"),
        ("heartbeat_s", 0.0, "heartbeat_s is 0.0 but must be 0.01 to 2.0"),
        ("heartbeat_s", 2.1, "heartbeat_s is 2.1 but must be 0.01 to 2.0"),
        ("max_deliveries", 1, "max_deliveries is 1 but must be at least 2"),
        ("metrics_port", 65_536, "metrics_port is 65536 but must be 0 to 65535"),
    ],
)
def test_a_setting_out_of_its_bounds_is_refused(field: str, value: object, text: str) -> None:
    given: dict[str, object] = {"region": "eu", field: value}
    with pytest.raises(ConfigError) as caught:
        WorkerSettings(**given)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType] - wrong on purpose
    assert text in str(caught.value)


def test_the_defaults_are_good() -> None:
    settings = WorkerSettings(region="eu")
    assert (settings.chunk_window_ms, settings.max_deliveries, settings.metrics_port) == (20.0, 16, None)


@pytest.mark.parametrize("host", ["gpu-7.example", "Web_Host", "-", "", "x" * 80, "ünïcode"])
def test_a_made_up_name_is_a_name(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: host)
    first, second = new_worker_name(), new_worker_name()
    assert TypeAdapter[str](Name).validate_python(first) == first
    assert first != second
