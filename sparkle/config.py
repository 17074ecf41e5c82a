"""The one loader of settings: a file, then the environment, then flags; and the check that most need.

Knows none of the parts' settings.
"""

from __future__ import annotations

import dataclasses
import os
import tomllib
import types
import typing
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

from sparkle.errors import ConfigError

S = TypeVar("S")


def environment() -> Mapping[str, str]:
    """The process's environment: the only place that reads it."""
    return os.environ  # noqa: TID251


def leave_out(*names: str) -> None:
    """Take variables out of the environment of this process and its children."""
    for name in names:
        os.environ.pop(name, None)  # noqa: TID251


def load(
    settings: type[S],
    section: str,
    *,
    file: Path | None = None,
    environ: Mapping[str, str],
    flags: Mapping[str, object],
) -> S:
    """Settings of one part from `[section]` of a TOML file, `SPARKLE_<SECTION>_<FIELD>`, then flags.

    A flag that is None was not given. Raises ConfigError for an unknown name, a value of another type, or
    whatever the settings' own checks refuse.
    """
    if not dataclasses.is_dataclass(settings):
        raise TypeError(f"{settings.__name__} is no dataclass")
    kinds = typing.get_type_hints(settings)
    values: dict[str, Any] = {}
    for name, value in _from_file(file, section).items():
        values[name] = _typed(f"{section}.{name}", value, _known(kinds, name, section, f"{file}"))
    prefix = f"SPARKLE_{section.upper()}_"
    for variable, text in environ.items():
        if variable.startswith(prefix):
            name = variable.removeprefix(prefix).lower()
            values[name] = _parsed(variable, text, _known(kinds, name, section, variable))
    for name, value in flags.items():
        if value is not None:
            flag = f"--{name.replace('_', '-')}"
            values[name] = _typed(flag, value, _known(kinds, name, section, flag))
    return settings(**values)


def require_tables(file: Path, names: Sequence[str]) -> None:
    """Raises ConfigError for anything else on top of a file of settings: nobody would read it."""
    for name in _tables(file):
        if name not in names:
            known = ", ".join(f"[{known}]" for known in names)
            raise ConfigError(f"{file}: {name} is none of its tables, {known}")


def require_positive(settings: object, *names: str) -> None:
    """Raises ConfigError for the first of these fields that is not above 0; not a number is not."""
    for name in names:
        value = getattr(settings, name)
        if not value > 0:
            raise ConfigError(f"{name} is {value} but must be above 0")


def _from_file(file: Path | None, section: str) -> Mapping[str, object]:
    table: object = {} if file is None else _tables(file).get(section, {})
    if not isinstance(table, dict):
        raise ConfigError(f"{file}: {section} is no table; write [{section}]")
    return typing.cast("dict[str, object]", table)


def _tables(file: Path) -> dict[str, object]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read ({error.strerror})") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: not TOML: {error}") from None


def _known(kinds: Mapping[str, Any], name: str, section: str, source: str) -> Any:
    if name not in kinds:
        raise ConfigError(f"{source}: {section} has no setting {name}; it has {', '.join(sorted(kinds))}")
    return kinds[name]


def _plain(kind: Any) -> Any:
    """The type behind `X | None`."""
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return next(choice for choice in typing.get_args(kind) if choice is not type(None))
    return kind


def _typed(name: str, value: object, kind: Any) -> object:
    plain = _plain(kind)
    if plain is float and type(value) is int:
        return float(value)
    if isinstance(value, str):
        _require_no_zero(name, value)
    if plain is Path and isinstance(value, str):
        return Path(value)
    if isinstance(value, str) and plain is not str:
        return _parsed(name, value, kind)
    if not isinstance(value, plain) or (plain is int and isinstance(value, bool)):
        raise ConfigError(f"{name} is a {type(value).__name__} but must be {_in_words(plain)}")
    return value


def _require_no_zero(name: str, text: str) -> None:
    # a TOML file can hold one; no path, and no argument of a process
    if "\0" in text:
        raise ConfigError(f"{name} has a zero byte in it; leave that out")


def _in_words(plain: type) -> str:
    """What a value must be, for people."""
    return {int: "a whole number", float: "a number", bool: "true or false"}.get(plain, f"a {plain.__name__}")


def _parsed(name: str, text: str, kind: Any) -> object:
    plain = _plain(kind)
    if plain is bool:
        if text.lower() not in ("true", "false", "1", "0"):
            raise ConfigError(f"{name} is {text!r} but must be true or false")
        return text.lower() in ("true", "1")
    if issubclass(plain, Enum) and text not in (choices := [str(choice.value) for choice in plain]):
        raise ConfigError(f"{name} is {text!r} but must be one of {', '.join(choices)}")
    try:
        return plain(text)
    # a TypeError: settings inside settings, which no text can be
    except (ValueError, TypeError):
        raise ConfigError(f"{name} is {text!r} but must be {_in_words(plain)}") from None
