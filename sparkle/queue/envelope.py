"""A message as it came: bytes that nobody has read yet, and what seals them. Knows no connection."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol

NO_HEADERS: Mapping[str, str] = MappingProxyType({})
_PLACE_HEADER = "Nats-Sequence"
"""On all that the server reads out of a stream or sends on from one, and on no word of its own."""


@dataclass(frozen=True, slots=True)
class Envelope:
    """Subject, bytes, headers, and where an answer is wanted."""

    subject: str
    payload: bytes = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=lambda: NO_HEADERS)
    reply: str = ""

    @property
    def status(self) -> str:
        """The three digits of a message that the server itself wrote, else empty.

        What was stored somebody wrote, with its headers, whatever they say.
        """
        return "" if _PLACE_HEADER in self.headers else self.headers.get("Status", "")

    @property
    def reason(self) -> str:
        """The server's words to its status."""
        return self.headers.get("Description", "")


class Seal(Protocol):
    """A tenant's key: `tenant_key.TenantKey`."""

    @property
    def id(self) -> str:
        """Names it in headers."""
        ...

    @property
    def headers(self) -> Mapping[str, str]:
        """What goes beside a payload that it has sealed."""
        ...

    def seal(self, place: str, payload: bytes) -> bytes:
        """The payload as it goes under the subject `place`."""
        ...

    def open(self, place: str, sealed: bytes) -> bytes:
        """What was sealed for the subject `place`. Raises NotAuthentic for anything else."""
        ...
