"""A batch's file to its requests, or what is wrong with its lines. Knows no queue and no answer."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import JsonValue, StringConstraints, ValidationError

from sparkle.producers.gateway.chat_request import ChatRequest
from sparkle.producers.gateway.completion_request import CompletionRequest
from sparkle.producers.gateway.faults import ApiFault, from_validation, invalid
from sparkle.producers.gateway.response_request import ResponseRequest
from sparkle.schemas.message import Part

Request = ChatRequest | CompletionRequest | ResponseRequest

REQUESTS: Mapping[str, type[Request]] = {
    "/v1/chat/completions": ChatRequest,
    "/v1/completions": CompletionRequest,
    "/v1/responses": ResponseRequest,
}
"""What a batch can ask for."""

Url = Literal["/v1/chat/completions", "/v1/completions", "/v1/responses"]

MAX_LINES = 50_000
MAX_ERRORS = 50

_PAUSE_LINES = 50
"""After so many lines others have their turn."""


class BatchLine(Part):
    """A line of the file."""

    custom_id: Annotated[str, StringConstraints(min_length=1, max_length=512)]
    method: Literal["POST"]
    url: Url
    body: dict[str, JsonValue]


@dataclass(frozen=True, slots=True)
class Wanted:
    """A line's request."""

    number: int
    custom_id: str
    request: Request


class LineFault(Exception):
    """A line that is none; OpenAI's words for it in `fields`."""

    def __init__(self, number: int, fault: ApiFault) -> None:
        super().__init__(f"line {number}: {fault}")
        self.fields: dict[str, object] = {
            "line": number,
            "code": fault.code,
            "message": fault.message,
            "param": fault.param,
        }


async def read_lines(data: bytearray, url: str) -> tuple[list[Wanted], list[dict[str, object]]]:
    """The requests, and the first errors: with any, none is to be sent."""
    wanted: list[Wanted] = []
    errors: list[dict[str, object]] = []
    seen: set[str] = set()
    number = 0
    for number, line in enumerate(data.splitlines(), start=1):
        if number % _PAUSE_LINES == 0:
            await asyncio.sleep(0)
        if not line.strip():
            continue
        try:
            one = read_line(number, line, url)
            if one.custom_id in seen:
                raise LineFault(number, invalid("custom_id: is on an earlier line", "custom_id"))
            if len(wanted) == MAX_LINES:
                raise LineFault(number, invalid(f"a batch has at most {MAX_LINES} lines"))
        except LineFault as fault:
            errors.append(fault.fields)
            if len(errors) == MAX_ERRORS:
                break
        else:
            seen.add(one.custom_id)
            wanted.append(one)
    if not wanted and not errors:
        errors.append(LineFault(number, invalid("the file has no lines")).fields)
    return wanted, errors


def read_line(number: int, line: bytearray, url: str) -> Wanted:
    """One line. Raises LineFault."""
    try:
        read = BatchLine.model_validate_json(line)
        if read.url != url:
            raise LineFault(number, invalid(f"url: must be the batch's, {url}", "url"))
        request = REQUESTS[url].model_validate(read.body)
    except ValidationError as error:
        raise LineFault(number, from_validation(error)) from None
    if request.stream:
        raise LineFault(number, invalid("stream: must be false in a batch", "stream"))
    return Wanted(number, read.custom_id, request)
