"""compose.yaml, as far as it can be proved without Docker: its server's rules, its ports, its commands."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # it has no types of its own
from typer.testing import CliRunner

from sparkle.cli import app
from sparkle.queue.server_process import find_binary

COMPOSE: dict[str, Any] = yaml.safe_load((Path(__file__).parents[2] / "compose.yaml").read_text())


@pytest.mark.usefixtures("nats_binary")
async def test_a_real_server_takes_the_configuration(tmp_path: Path) -> None:
    config = tmp_path / "nats.conf"
    config.write_text(COMPOSE["configs"]["nats"]["content"])
    check = await asyncio.create_subprocess_exec(
        find_binary(), "-t", "-c", str(config), stderr=asyncio.subprocess.PIPE
    )
    _, said = await check.communicate()
    assert (check.returncode, b"is valid" in said) == (0, True)


def test_nothing_is_written_or_reachable_that_should_not_be() -> None:
    content = COMPOSE["configs"]["nats"]["content"]
    assert "max_file: 0" in content
    assert "trace: false" in content
    assert "debug: false" in content
    assert COMPOSE["services"]["nats"]["ports"] == ["127.0.0.1:4222:4222"]
    for service in ("nats", "worker"):
        assert COMPOSE["services"][service]["ulimits"] == {"core": 0}


@pytest.mark.parametrize("service", ["topology", "worker"])
def test_each_command_is_one_that_there_is(service: str) -> None:
    command = [str(part) for part in COMPOSE["services"][service]["command"]]
    flags = [part for part in command if part.startswith("--")]
    names = command[: command.index(flags[0])]
    shown = CliRunner().invoke(app, [*names, "--help"], env={"COLUMNS": "200"})
    assert shown.exit_code == 0
    assert [flag for flag in flags if flag not in shown.output] == []
