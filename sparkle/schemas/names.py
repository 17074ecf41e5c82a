"""Checks a region, tenant or worker where a setting or a header names one. Knows no message."""

from __future__ import annotations

from pydantic import TypeAdapter, ValidationError

from sparkle.errors import ConfigError
from sparkle.schemas.message import Name

_NAME = TypeAdapter[str](Name)


def is_name(value: str) -> bool:
    """Whether `value` is a `Name`, which a subject can hold."""
    try:
        _NAME.validate_python(value)
    except ValidationError:
        return False
    return True


def require_name(setting: str, value: str) -> None:
    """Raises ConfigError unless `value` is a `Name`, which a subject can hold."""
    if not is_name(value):
        raise ConfigError(f"{setting} is {value!r} but must be 1 to 63 lower-case letters, digits and dashes")
