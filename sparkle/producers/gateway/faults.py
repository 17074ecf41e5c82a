"""What goes wrong, as OpenAI's clients read it: a status and an error object. Knows no endpoint."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping
from types import MappingProxyType

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from sparkle.errors import (
    AccessError,
    AllowanceSpent,
    ContractError,
    FailureCode,
    JobFailed,
    KeyRefused,
    MessageTooLarge,
    QueueFull,
    RateLimited,
    SparkleError,
)

RETRY_S = 1
"""When to come back where nobody knows better."""

MOST_PROBLEMS = 5
"""Wrong fields that are told of one request."""

_STATUS_OF_FAILURE: Mapping[FailureCode, int] = {
    FailureCode.DEADLINE_EXCEEDED: 504,
    FailureCode.CANCELLED: 409,
    FailureCode.POISON_JOB: 500,
    FailureCode.ENGINE_ERROR: 500,
}
"""All others say that the request cannot be answered: 400."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")


class ApiFault(Exception):
    """An answer that is an error. As an exception its text is the code: the message is the sender's."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        param: str | None = None,
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        super().__init__(status, code)
        self.status = status
        self.code = code
        self.message = message
        self.param = param
        self.headers = headers

    def __str__(self) -> str:
        return f"{self.status} {self.code}"

    @property
    def type(self) -> str:
        """OpenAI's name for this kind of error."""
        match self.status:
            case 401:
                return "authentication_error"
            case 403:
                return "permission_error"
            case 429:
                return "insufficient_quota" if self.code == "insufficient_quota" else "rate_limit_error"
            case status if status >= 500:
                return "server_error"
            case _:
                return "invalid_request_error"

    def error(self) -> dict[str, object]:
        """OpenAI's error object."""
        return {"message": self.message, "type": self.type, "param": self.param, "code": self.code}

    def body(self) -> dict[str, object]:
        """The answer's body."""
        return {"error": self.error()}


def invalid(message: str, param: str | None = None, *, code: str = "invalid_request") -> ApiFault:
    """The request itself is wrong."""
    return ApiFault(400, code, message, param)


def unsupported(name: str) -> ApiFault:
    """The request has a field of this name, and none such is read."""
    place = _place_name(name)
    return invalid(f"{place}: is not supported", place, code="unsupported_field")


def not_found(what: str) -> ApiFault:
    """There is no such thing, or it is another tenant's: nobody can tell which."""
    return ApiFault(404, "not_found", f"no such {what}")


def from_error(error: SparkleError) -> ApiFault:
    """The fault that an error of ours is to whoever sent the request."""
    if isinstance(error, JobFailed):
        return _from_failure(error)
    if isinstance(error, AccessError):
        return _from_access(error)
    if isinstance(error, QueueFull):
        return ApiFault(429, "queue_full", str(error), headers=_retry_after(RETRY_S))
    if isinstance(error, MessageTooLarge):
        return ApiFault(413, "too_large", str(error))
    if isinstance(error, ContractError):
        return invalid(str(error))
    if error.retryable:
        message = "the queue cannot be reached now; try again"
        return ApiFault(503, "queue_unavailable", message, headers=_retry_after(RETRY_S))
    return ApiFault(500, type(error).__name__, str(error))


def _from_failure(error: JobFailed) -> ApiFault:
    status = _STATUS_OF_FAILURE.get(error.code, 400)
    if error.retryable and status == 500:
        return ApiFault(503, str(error.code), str(error), headers=_retry_after(RETRY_S))
    code = "context_length_exceeded" if error.code is FailureCode.TOO_LONG else str(error.code)
    # the job has had its tries: OpenAI's clients would send it again after a 409 or a 5xx
    return ApiFault(status, code, str(error), headers={"x-should-retry": "false"})


def _from_access(error: AccessError) -> ApiFault:
    if isinstance(error, KeyRefused):
        return ApiFault(401, "invalid_api_key", str(error), headers={"WWW-Authenticate": "Bearer"})
    if isinstance(error, RateLimited):
        return ApiFault(429, "rate_limit_exceeded", str(error), headers=_retry_after(error.retry_after_s))
    if isinstance(error, AllowanceSpent):
        headers = {**_retry_after(error.resets_ms / 1000 - time.time()), "x-should-retry": "false"}
        return ApiFault(429, "insufficient_quota", str(error), headers=headers)
    return ApiFault(403, "forbidden", str(error))


def _retry_after(wait_s: float) -> dict[str, str]:
    return {"Retry-After": str(max(1, math.ceil(wait_s)))}


def from_validation(error: ValidationError) -> ApiFault:
    """What is wrong with which fields of a request; names what is not known, shows no value."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    problems = [_problem(one) for one in found[:MOST_PROBLEMS]]
    more = f"; and {len(found) - MOST_PROBLEMS} more" if len(found) > MOST_PROBLEMS else ""
    param = problems[0][0] or None
    unknown = found[0]["type"] == "extra_forbidden"
    text = "; ".join(f"{place}: {what}" if place else what for place, what in problems)
    return invalid(text + more, param, code="unsupported_field" if unknown else "invalid_request")


def _problem(error: ErrorDetails) -> tuple[str, str]:
    """Place and words."""
    place = ".".join(_place_name(part) for part in error["loc"] if _is_place(part))
    place = place.removeprefix("sampling.")
    match error["type"]:
        case "extra_forbidden":
            return place, "is not supported"
        case "json_invalid":
            return "", "the body is not JSON in UTF-8"
        case "union_tag_invalid":
            # the library's words begin with what was sent
            return place, f"type must be one of {error['msg'].rpartition('expected tags: ')[2]}"
        case _:
            return place, error["msg"].removeprefix("Value error, ")


def _is_place(part: int | str) -> bool:
    """Not pydantic's own word for one way to read a field."""
    return isinstance(part, int) or "[" not in part


def _place_name(part: int | str) -> str:
    return str(part) if isinstance(part, int) or _NAME.fullmatch(part) else "(a name)"
