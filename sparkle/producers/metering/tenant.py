"""A tenant as an administrator has set it up: region, models, limits, keys. Values only, knows no store."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints

from sparkle.schemas.message import Milliseconds, Name, Part

MAX_KEYS = 16
"""A tenant's, those that still end included."""

ModelName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,127}$")]
MOST = 2**53 - 1
"""The largest whole number that every reader of JSON has exactly."""

Limit = Annotated[int, Field(ge=1, le=MOST)]


class KeyHash(Part):
    """All that is kept of a key: the key itself was shown once."""

    id: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{12}$")]
    """The part of the key that is no secret: finds it, and names it to people."""

    sha256: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")] = Field(repr=False)
    """Of the whole key; its 256 random bits cannot be guessed, so a slow hash would add nothing."""

    made_ms: Milliseconds

    ends_ms: Milliseconds | None = None
    """From then on it is refused."""


class Limits(Part):
    """How fast a tenant may go at each gateway; None is without end."""

    requests_per_minute: Limit | None = None
    """Jobs begun."""

    tokens_per_minute: Limit | None = None
    """Of prompts and answers, at most as many as each job can use until its record says how many it did."""

    max_running: Limit | None = None
    """Jobs at once, those that wait in the queue included."""


class Tenant(Part):
    """Who may ask for what."""

    name: Name
    region: Name
    """Where its content may go."""

    models: Annotated[tuple[ModelName, ...], Field(max_length=32)] = ()
    """Models that it may ask for, the first where a request names none; empty is any that is served."""

    allowance_tokens: Annotated[int, Field(ge=0, le=MOST)] | None = None
    """Tokens of prompts and answers in a calendar month, UTC; None is without end."""

    limits: Limits = Limits()

    keys: Annotated[tuple[KeyHash, ...], Field(max_length=MAX_KEYS)] = ()
