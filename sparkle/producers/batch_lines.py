"""One line of a batch file, in the OpenAI form, to a job; its answer to a line of the output. Knows no queue.

In:  {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": […], …}}
Out: {"id": "batch_req_1", "custom_id": "a", "response": {"status_code": 200, "request_id": …, "body": {…}},
      "error": null}, or with `response` null and `error` {"code": …, "message": …}

What an error says names fields and limits and never holds their content: a line's own text stays in its file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from pydantic import ValidationError

from sparkle.errors import InvalidMessage
from sparkle.producers.chat_choice import chat_choice, chat_message
from sparkle.producers.openai_forms import (
    EFFORTS,
    SAMPLING_FIELDS,
    job_shape,
    job_tool,
    job_tool_choice,
    job_turn,
)
from sparkle.schemas.answer import Result
from sparkle.schemas.codec import describe
from sparkle.schemas.job import Job, Sampling

URL = "/v1/chat/completions"
LINE_FIELDS = ("custom_id", "method", "url", "body")
MAX_CUSTOM_ID_CHARS = 512

JOB_FIELDS = ("messages", "response_format", "tools", "tool_choice", "parallel_tool_calls", "thinking")
OTHER_FIELDS = (
    *("max_tokens", "max_completion_tokens", "reasoning_effort", "n", "stream"),
    *("logprobs", "top_logprobs"),
)
NOTES = ("model", "user", "metadata")
"""Fields that change no answer: one model is served, and the rest is for the sender."""


@dataclass(frozen=True, slots=True)
class BatchLine:
    """A line that is a job."""

    number: int
    custom_id: str
    model: str
    job: Job


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that is none: why, and whose it is if that can be read."""

    number: int
    custom_id: str | None
    code: str
    message: str


def parse(number: int, data: bytes) -> BatchLine | BadLine:
    """The line's job, or what is wrong with it. Lines are counted from 1."""
    try:
        line = _object(data)
    except InvalidMessage as error:
        return BadLine(number, None, "invalid_json", str(error))
    custom_id = line.get("custom_id")
    if not _is_custom_id(custom_id):
        limit = f"a text of 1 to {MAX_CUSTOM_ID_CHARS} characters"
        return BadLine(number, None, "invalid_line", f"custom_id: missing or not {limit}")
    try:
        job, model = _job_of(line)
    except InvalidMessage as error:
        return BadLine(number, cast(str, custom_id), "invalid_line", str(error))
    return BatchLine(number, cast(str, custom_id), model, job)


def answer_line(line: BatchLine, result: Result, *, created_s: int) -> dict[str, object]:
    """The output line of an answer; `created_s` is Unix time."""
    usage = result.usage
    body: dict[str, object] = {
        "id": f"chatcmpl-{result.job}",
        "object": "chat.completion",
        "created": created_s,
        "model": line.model,
        "choices": [_choice(result)],
        "usage": {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        },
    }
    response = {"status_code": 200, "request_id": result.job, "body": body}
    return {"id": line_id(line.number), "custom_id": line.custom_id, "response": response, "error": None}


def _choice(result: Result) -> dict[str, object]:
    choice = chat_choice(0, result)
    if result.valid is None:
        return choice
    # files had it in the message before they had it beside the finish reason, as the gateway has it
    return {**choice, "message": {**chat_message(result), "valid": result.valid}}


def error_line(number: int, custom_id: str | None, code: str, message: str) -> dict[str, object]:
    """The output line of a line that has no answer."""
    error = {"code": code, "message": message}
    return {"id": line_id(number), "custom_id": custom_id, "response": None, "error": error}


def line_id(number: int) -> str:
    """The output's own id of an input line."""
    return f"batch_req_{number}"


def _object(data: bytes) -> Mapping[str, object]:
    try:
        value: object = json.loads(data)
    # bad UTF-8 is a ValueError as well
    except (ValueError, RecursionError):
        raise InvalidMessage("the line is not JSON") from None
    if not isinstance(value, dict):
        raise InvalidMessage("the line is no JSON object")
    return cast("dict[str, object]", value)


def _is_custom_id(value: object) -> bool:
    if not isinstance(value, str) or not 1 <= len(value) <= MAX_CUSTOM_ID_CHARS:
        return False
    # half of a surrogate pair is no character and could not be written to the output
    return not any("\ud800" <= char <= "\udfff" for char in value)


def _job_of(line: Mapping[str, object]) -> tuple[Job, str]:
    _only(line, LINE_FIELDS, "")
    if line.get("method") != "POST":
        raise InvalidMessage("method: must be POST")
    if line.get("url") != URL:
        raise InvalidMessage(f"url: must be {URL}")
    body = line.get("body")
    if not isinstance(body, dict):
        raise InvalidMessage("body: missing or no object")
    # null is what clients send for "not given"
    given = {name: value for name, value in cast("dict[str, object]", body).items() if value is not None}
    _only(given, (*SAMPLING_FIELDS, *JOB_FIELDS, *OTHER_FIELDS, *NOTES), "body.")
    model = given.get("model", "sparkle")
    if not isinstance(model, str):
        raise InvalidMessage("body.model: must be a text")
    try:
        sampling = Sampling.model_validate(_sampling(given))
        return Job.model_validate({**_fields(given), "sampling": sampling}), model
    except ValidationError as error:
        raise InvalidMessage(f"body.{describe(error)}") from None


def _only(fields: Mapping[str, object], known: tuple[str, ...], prefix: str) -> None:
    unknown = sorted(set(fields) - set(known))
    if unknown:
        names = ", ".join(f"{prefix}{name[:64]}" for name in unknown[:5])
        raise InvalidMessage(f"{names}: not supported; supported here: {', '.join(known)}")


def _job_field(name: str, value: object) -> object:
    """A field in the contract's form. Raises InvalidMessage."""
    match name, value:
        case "response_format", _:
            return job_shape(value)
        case "tools", list():
            return [job_tool(tool) for tool in cast("list[object]", value)]
        case "tool_choice", _:
            return job_tool_choice(value)
        case "messages", list():
            return [job_turn(turn, number) for number, turn in enumerate(cast("list[object]", value))]
        case _:
            return value


def _sampling(body: Mapping[str, object]) -> dict[str, object]:
    """The job's sampling. Raises InvalidMessage."""
    fields = {name: body[name] for name in SAMPLING_FIELDS if name in body}
    if isinstance(fields.get("stop"), str):
        fields["stop"] = [fields["stop"]]
    logprobs = body.get("logprobs", False)
    if not isinstance(logprobs, bool):
        raise InvalidMessage("body.logprobs: must be true or false; top_logprobs says how many")
    if "top_logprobs" in body and not logprobs:
        raise InvalidMessage("body.top_logprobs: needs logprobs to be true")
    if logprobs:
        fields["logprobs"] = body.get("top_logprobs", 0)
    return fields


def _fields(body: Mapping[str, object]) -> dict[str, object]:
    """The job's own fields, out of the several names that OpenAI has for some."""
    if body.get("n", 1) != 1:
        raise InvalidMessage("body.n: must be 1; write a line for each answer")
    if body.get("stream", False) is not False:
        raise InvalidMessage("body.stream: must be false in a batch file")
    fields = {name: _job_field(name, body[name]) for name in JOB_FIELDS if name in body}
    if "reasoning_effort" in body:
        effort = body["reasoning_effort"]
        if "thinking" in body or not isinstance(effort, str) or effort not in EFFORTS:
            names = ", ".join(EFFORTS)
            raise InvalidMessage(f"body.reasoning_effort: must be one of {names}, without thinking beside it")
        fields["thinking"] = EFFORTS[effort]
    limits = [body[name] for name in ("max_completion_tokens", "max_tokens") if name in body]
    if limits:
        # one alone may be NaN, which differs from itself
        if len(limits) == 2 and limits[0] != limits[1]:
            raise InvalidMessage("body.max_tokens: differs from max_completion_tokens; give one of them")
        fields["max_tokens"] = limits[0]
    return fields
