"""The loader: file, then environment, then flags; every bad value is named with what it must be."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from sparkle.config import load, require_tables
from sparkle.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class DoorSettings:
    width_cm: int = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class OvenSettings:
    slots: int = 8
    heat_s: float = 1.5
    door: Path | None = None
    light: bool = False
    name: str = "oven"
    inner_door: DoorSettings = DoorSettings()

    def __post_init__(self) -> None:
        if not 1 <= self.slots <= 64:
            raise ConfigError(f"slots is {self.slots} but must be 1 to 64")


def loaded(
    *,
    file: Path | None = None,
    environ: dict[str, str] | None = None,
    flags: dict[str, object] | None = None,
) -> OvenSettings:
    return load(OvenSettings, "oven", file=file, environ=environ or {}, flags=flags or {})


def test_nothing_given_is_the_defaults() -> None:
    assert loaded(flags={"slots": None}) == OvenSettings()


def test_flags_win_over_environment_over_file(tmp_path: Path) -> None:
    file = tmp_path / "sparkle.toml"
    file.write_text('[oven]\nslots = 1\nheat_s = 2\nname = "file"\n[other]\nx = 1\n')
    environ = {
        "SPARKLE_OVEN_NAME": "environ",
        "SPARKLE_OVEN_LIGHT": "true",
        "SPARKLE_OTHER_X": "1",
        "HOME": "/",
    }
    made = loaded(file=file, environ=environ, flags={"name": "flag", "door": "a/b"})
    assert made == OvenSettings(slots=1, heat_s=2.0, name="flag", light=True, door=Path("a/b"))


@pytest.mark.parametrize(
    ("environ", "flags", "text"),
    [
        ({"SPARKLE_OVEN_SLOTS": "many"}, {}, "SPARKLE_OVEN_SLOTS is 'many' but must be a whole number"),
        ({"SPARKLE_OVEN_LIGHT": "maybe"}, {}, "must be true or false"),
        (
            {"SPARKLE_OVEN_SLOT": "1"},
            {},
            "SPARKLE_OVEN_SLOT: oven has no setting slot; it has door, heat_s, ",
        ),
        ({"SPARKLE_OVEN_INNER_DOOR": "40"}, {}, "SPARKLE_OVEN_INNER_DOOR is '40' but must be a DoorSettings"),
        ({}, {"slots": 1.5}, "--slots is a float but must be a whole number"),
        ({}, {"slots": True}, "--slots is a bool but must be a whole number"),
        ({}, {"slots": 99}, "slots is 99 but must be 1 to 64"),
        ({}, {"name": "a\0b"}, "--name has a zero byte in it; leave that out"),
        ({}, {"door": "a\0b"}, "--door has a zero byte in it; leave that out"),
    ],
)
def test_a_bad_value_is_named(environ: dict[str, str], flags: dict[str, object], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        loaded(environ=environ, flags=flags)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("[oven", "not TOML"),
        ("oven = 3", r"write \[oven\]"),
        ("[oven]\nrack = 1", "sparkle.toml: oven has no setting rack"),
        ('[oven]\ndoor = "a\\u0000b"', "oven.door has a zero byte"),
    ],
)
def test_a_bad_file_is_named(tmp_path: Path, content: str, text: str) -> None:
    file = tmp_path / "sparkle.toml"
    file.write_text(content)
    with pytest.raises(ConfigError, match=text):
        loaded(file=file)


@pytest.mark.parametrize(("content", "name"), [("[ovne]\nslots = 2", "ovne"), ("slots = 2\n[oven]", "slots")])
def test_what_no_part_would_read_is_refused(tmp_path: Path, content: str, name: str) -> None:
    file = tmp_path / "sparkle.toml"
    file.write_text(content)
    with pytest.raises(ConfigError, match=rf"{name} is none of its tables, \[door\], \[oven\]"):
        require_tables(file, ("door", "oven"))


def test_a_file_with_known_tables_alone_is_taken(tmp_path: Path) -> None:
    file = tmp_path / "sparkle.toml"
    file.write_text("[oven]\nslots = 2\n")
    require_tables(file, ("door", "oven"))


def test_a_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    file = tmp_path / "sparkle.toml"
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="not TOML"):
        loaded(file=file)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        loaded(file=tmp_path / "none.toml")
