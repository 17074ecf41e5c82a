"""A message as it came: bytes that nobody has read yet. Knows no connection."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

NO_HEADERS: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Envelope:
    """Subject, bytes, headers, and where an answer is wanted."""

    subject: str
    payload: bytes = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=lambda: NO_HEADERS)
    reply: str = ""

    @property
    def status(self) -> str:
        """The three digits of a message that the server itself wrote, else empty."""
        return self.headers.get("Status", "")

    @property
    def reason(self) -> str:
        """The server's words to its status."""
        return self.headers.get("Description", "")
