"""The engine's settings as the command line of its process, both ways. Knows no process."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

from sparkle import config
from sparkle.engine.settings import EngineSettings


def command_line(model: Path, settings: EngineSettings) -> list[str]:
    """What tells a process of the engine its model and settings; a setting that is None is left out."""
    arguments = ["--model", str(model)]
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if value is not None:
            arguments += [f"--{field.name.replace('_', '-')}", str(value)]
    return arguments


def engine_parser(program: str, description: str | None) -> argparse.ArgumentParser:
    """A parser of what `command_line` writes."""
    parser = argparse.ArgumentParser(prog=program, description=description)
    parser.add_argument("--model", type=Path, required=True, help="the checkpoint's directory")
    for field in dataclasses.fields(EngineSettings):
        parser.add_argument(f"--{field.name.replace('_', '-')}")
    return parser


def settings_of(arguments: argparse.Namespace) -> EngineSettings:
    """The settings among parsed arguments. Raises ConfigError."""
    flags = {field.name: getattr(arguments, field.name) for field in dataclasses.fields(EngineSettings)}
    return config.load(EngineSettings, "engine", environ={}, flags=flags)
