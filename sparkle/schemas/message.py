"""What every message has: a kind, a version, bounds on its fields. Knows neither bytes nor the queue."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

MAJOR = 1
MINOR = 3
VERSION = f"{MAJOR}.{MINOR}"

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]
"""A region, tenant or worker: lower-case letters, digits and dashes; safe inside a subject."""

JobId = Annotated[
    str,
    StringConstraints(
        pattern=r"^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$",
    ),
]
"""A UUID of version 7 in its canonical form: sortable by time, unique without a registry."""

ConversationId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
"""Names a conversation of one tenant: chosen by the producer, safe inside a subject."""

TraceParent = Annotated[
    str, StringConstraints(pattern=r"^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$")
]
"""W3C trace context: version, trace, span and flags, in hexadecimal digits."""

TokenId = Annotated[int, Field(ge=0, lt=2**20)]
Milliseconds = Annotated[int, Field(ge=0, lt=2**53)]
"""Unix time in milliseconds."""


class Part(BaseModel):
    """A piece of a message: immutable, strict about unknown fields, silent about values in its errors."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        hide_input_in_errors=True,
        allow_inf_nan=False,
        # the JSON Schemas show what stands under each field in the class
        use_attribute_docstrings=True,
        # a field that the library has a name of its own for goes by its alias on the queue
        serialize_by_alias=True,
        # half a character is no text that JSON could hold
        ser_json_bytes="base64",
        val_json_bytes="base64",
    )


class Message(Part):
    """What goes over the queue: a part with the contract's version; each subclass adds its `kind`."""

    v: Annotated[str, StringConstraints(pattern=r"^[0-9]{1,4}\.[0-9]{1,4}$")] = VERSION
    """Version of the contract, major.minor."""

    def evolve(self, **changes: object) -> Self:
        """A copy with some fields changed, checked like a new one. Raises pydantic.ValidationError."""
        return type(self).model_validate({**self.model_dump(), **changes})
