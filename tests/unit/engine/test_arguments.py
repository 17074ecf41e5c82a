"""What the worker tells the engine's process arrives as it was set."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparkle.engine.arguments import command_line, engine_parser, settings_of
from sparkle.engine.settings import Device, EngineSettings
from sparkle.errors import ConfigError
from sparkle.quiet.logs import LogLevel


@pytest.mark.parametrize(
    "settings",
    [
        EngineSettings(),
        EngineSettings(device=Device.CUDA, slots=3, kernel_cache=Path("/var/cache/a b")),
        EngineSettings(
            device=Device.CPU,
            slots=5,
            pass_tokens=99,
            chunk_tokens=64,
            page_tokens=7,
            kv_tokens=700,
            max_context_tokens=50,
            cache_s=60.0,
            cached_slots=3,
            draft_tokens=15,
            draft_model="/models/a draft",
            draft_vocab_size=32_768,
            threads=2,
            prompt_threads=4,
            log_level=LogLevel.DEBUG,
        ),
    ],
    ids=["defaults", "some", "all"],
)
def test_settings_survive_the_command_line(settings: EngineSettings) -> None:
    line = command_line(Path("/models/a model"), settings)
    arguments = engine_parser("engine", None).parse_args(line)
    assert arguments.model == Path("/models/a model")
    assert settings_of(arguments) == settings


def test_what_is_not_set_is_not_told() -> None:
    line = command_line(Path("m"), EngineSettings(slots=3))
    always = ["--cache-s", "600.0", "--prompt-threads", "2", "--log-level", "info"]
    assert line == ["--model", "m", "--device", "auto", "--slots", "3", *always]


def test_a_bad_value_is_named() -> None:
    arguments = engine_parser("engine", None).parse_args(["--model", "m", "--slots", "many"])
    with pytest.raises(ConfigError, match="--slots is 'many' but must be a whole number"):
        settings_of(arguments)
