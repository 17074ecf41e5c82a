"""What an operator meets stands in the pages: every setting with its default, every metric, every event."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sparkle.cli import TABLES
from sparkle.engine.settings import Device, EngineSettings
from sparkle.producers.gateway.metrics import GatewayMetrics
from sparkle.producers.gateway.settings import GatewaySettings
from sparkle.producers.metering.settings import MeteringSettings
from sparkle.producers.outbox import OutboxTiming
from sparkle.producers.settings import ClientSettings
from sparkle.queue.bus_access import BusAccess
from sparkle.queue.key_ring import EncryptionSettings
from sparkle.queue.streams import TopologySettings
from sparkle.queue.usage_streams import UsageSettings
from sparkle.schemas.priority import ServiceRates
from sparkle.workers.metrics import WorkerMetrics
from sparkle.workers.settings import WorkerSettings

ROOT = Path(__file__).parents[2]
SETTINGS: dict[str, Any] = {
    "client": ClientSettings(),
    "bus": BusAccess(),
    "encryption": EncryptionSettings(),
    "rates": ServiceRates(),
    "outbox": OutboxTiming(),
    "gateway": GatewaySettings(),
    "topology": TopologySettings(),
    "metering": MeteringSettings(),
    "meter_bus": BusAccess(),
    "usage": UsageSettings(),
    "worker": WorkerSettings(region="eu"),
    "engine": EngineSettings(),
}
TABLES_OF_THEIR_OWN = {"bus", "rates", "timing", "encryption"}
IN_WORDS = {"region", "name", "model", "metrics_port", "keys_file"}
"""Given, made up, bundled, or none."""


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def rows(table: str) -> dict[str, list[str]]:
    """By setting its row's cells, of one table of the page."""
    section = re.split(r"^## ", page("settings.md"), flags=re.MULTILINE)
    text = next(part for part in section if part.startswith(f"{table}\n"))
    cells = ([cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines())
    return {first[0].strip("`"): first[1:] for first in cells if first[0].startswith("`")}


def in_words(value: object) -> str:
    """A default as the page has it."""
    match value:
        case bool():
            return str(value).lower()
        case int() | float():
            return f"{value:,}".removesuffix(".0")
        case _:
            return str(value)


def test_the_page_has_the_tables_that_a_file_may_have() -> None:
    assert set(SETTINGS) == set(TABLES)
    assert set(re.findall(r"^## (\w+)$", page("settings.md"), re.MULTILINE)) == set(TABLES)


@pytest.mark.parametrize("table", TABLES)
def test_every_setting_is_on_the_page_and_no_other(table: str) -> None:
    names = {field.name for field in dataclasses.fields(SETTINGS[table])} - TABLES_OF_THEIR_OWN
    assert set(rows(table)) == names


@pytest.mark.parametrize("table", [table for table in TABLES if table != "engine"])
def test_the_defaults_on_the_page_are_true(table: str) -> None:
    settings = SETTINGS[table]
    for name, (default, _) in rows(table).items():
        if table not in ("bus", "meter_bus") and (
            table not in ("worker", "encryption") or name not in IN_WORDS
        ):
            value = getattr(settings, name)
            assert default == in_words(value), name


@pytest.mark.parametrize(("device", "column"), [(Device.CPU, 0), (Device.CUDA, 1)])
def test_the_engines_defaults_on_the_page_are_true(device: Device, column: int) -> None:
    sizes = EngineSettings().sizes(device)
    for name, cells in rows("engine").items():
        value = getattr(sizes, name, None)
        if value is not None:
            assert re.match(rf"{value:,.0f}\b", cells[column]), name


def test_every_metric_is_on_the_page() -> None:
    named = set(re.findall(r"`(sparkle_\w+)`", page("watching.md")))
    registries = (WorkerMetrics().registry, GatewayMetrics().registry)
    families = [family for registry in registries for family in registry.collect()]
    exposed = {f"{one.name}_total" if one.type == "counter" else one.name for one in families}
    assert named == exposed


def events() -> Iterator[str]:
    """Every event that is logged from `info` on."""
    for file in (ROOT / "sparkle").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(
                    func=ast.Attribute(value=ast.Name(id="log"), attr="info" | "warning" | "error"),
                    args=[ast.Constant(value=str(event)), *_],
                ):
                    yield event
                case _:
                    pass


def test_every_event_is_on_the_page() -> None:
    found = set(events())
    assert {"job_done", "follow_up", "memory_plan"} <= found
    assert found - set(re.findall(r"`(\w+)`", page("watching.md"))) == set()
