"""Checks a region, tenant or worker where a setting names one. Knows no message."""

from __future__ import annotations

from pydantic import TypeAdapter, ValidationError

from sparkle.errors import ConfigError
from sparkle.schemas.message import Name

_NAME = TypeAdapter[str](Name)


def require_name(setting: str, value: str) -> None:
    """Raises ConfigError unless `value` is a `Name`, which a subject can hold."""
    try:
        _NAME.validate_python(value)
    except ValidationError:
        raise ConfigError(
            f"{setting} is {value!r} but must be 1 to 63 lower-case letters, digits and dashes"
        ) from None
