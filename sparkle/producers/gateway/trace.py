"""A request's W3C trace context, which is passed on to its jobs. Knows no trace."""

from __future__ import annotations

from pydantic import TypeAdapter, ValidationError
from starlette.requests import Request

from sparkle.schemas.message import TraceParent
from sparkle.schemas.subjects import TRACE_HEADER

_FORM = TypeAdapter[str](TraceParent)
_NO_VERSION = "ff-"
_NO_TRACE, _NO_SPAN = "-" + 32 * "0" + "-", "-" + 16 * "0" + "-"


def traceparent(request: Request) -> str | None:
    """The one that the request has; None for what the standard says is to be ignored."""
    given = request.headers.getlist(TRACE_HEADER)
    if len(given) != 1:
        return None
    try:
        found = _FORM.validate_python(given[0])
    except ValidationError:
        return None
    ignored = found.startswith(_NO_VERSION) or _NO_TRACE in found or _NO_SPAN in found
    return None if ignored else found
