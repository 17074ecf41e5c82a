"""From the words of a command line to a tenant: what is not said stays as it is. Knows no store."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import ValidationError

from sparkle.errors import ConfigError
from sparkle.producers.metering.tenant import MOST, Tenant
from sparkle.schemas.codec import describe

NONE = "none"
"""In place of a number: without end."""

ANY = "any"
"""In place of a model's name: any that is served."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantChanges:
    """Each None leaves a field as it is."""

    region: str | None = None
    models: list[str] | None = None
    allowance: str | None = None
    requests_per_minute: str | None = None
    tokens_per_minute: str | None = None
    max_running: str | None = None

    def of(self, tenant: Tenant) -> Tenant:
        """The tenant with these changes. Raises ConfigError that names the first wrong one."""
        fields = tenant.model_dump()
        if self.region is not None:
            fields["region"] = self.region
        if self.models:
            fields["models"] = () if self.models == [ANY] else tuple(self.models)
        if self.allowance is not None:
            fields["allowance_tokens"] = _number("allowance", self.allowance)
        for name in ("requests_per_minute", "tokens_per_minute", "max_running"):
            text: str | None = getattr(self, name)
            if text is not None:
                fields["limits"][name] = _number(name, text)
        return _checked(fields)


def new_tenant(name: str, region: str, changes: TenantChanges) -> Tenant:
    """A tenant without keys. Raises ConfigError that names what is wrong."""
    return changes.of(_checked({"name": name, "region": region}))


def _checked(fields: dict[str, object]) -> Tenant:
    try:
        return Tenant.model_validate(fields)
    except ValidationError as error:
        raise ConfigError(describe(error)) from None


def _number(name: str, text: str) -> int | None:
    if text == NONE:
        return None
    digits = text.replace("_", "").replace(",", "")
    # of more digits than the limit there may be so many that they cannot be read
    is_number = digits.isascii() and digits.isdecimal() and len(digits) <= len(str(MOST))
    if not is_number or int(digits) > MOST:
        flag = f"--{name.replace('_', '-')}"
        raise ConfigError(f"{flag} is {text!r} but must be a whole number of at most {MOST}, or {NONE}")
    return int(digits)
