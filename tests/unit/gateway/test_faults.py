"""Errors as OpenAI's clients read them: status, code, whether another try can help; no content in any."""

from __future__ import annotations

import json

import pytest
from pydantic import ValidationError

from sparkle.errors import (
    FailureCode,
    InvalidMessage,
    JobFailed,
    MessageTooLarge,
    NotConnected,
    PublishUncertain,
    QueueFull,
    SparkleError,
    TopologyMissing,
)
from sparkle.producers.gateway.chat_request import ChatRequest
from sparkle.producers.gateway.completion_request import CompletionRequest
from sparkle.producers.gateway.faults import ApiFault, from_error, from_validation
from sparkle.producers.gateway.response_request import ResponseRequest
from sparkle.schemas.message import Part


def validation(**fields: object) -> ApiFault:
    with pytest.raises(ValidationError) as error:
        ChatRequest.model_validate(fields)
    return from_validation(error.value)


@pytest.mark.parametrize(
    ("error", "status", "code", "again"),
    [
        (QueueFull("full"), 429, "queue_full", True),
        (MessageTooLarge("long"), 413, "too_large", False),
        (InvalidMessage("wrong"), 400, "invalid_request", False),
        (NotConnected("away"), 503, "queue_unavailable", True),
        (PublishUncertain("late"), 503, "queue_unavailable", True),
        (TopologyMissing("none"), 500, "TopologyMissing", False),
        (JobFailed(FailureCode.TOO_LONG, "x", retryable=False), 400, "context_length_exceeded", False),
        (JobFailed(FailureCode.DEADLINE_EXCEEDED, "x", retryable=False), 504, "deadline_exceeded", False),
        (JobFailed(FailureCode.CANCELLED, "x", retryable=False), 409, "cancelled", False),
        (JobFailed(FailureCode.ENGINE_ERROR, "x", retryable=True), 503, "engine_error", True),
        (JobFailed(FailureCode.POISON_JOB, "x", retryable=False), 500, "poison_job", False),
        (JobFailed(FailureCode.UNSUPPORTED_SCHEMA, "x", retryable=False), 400, "unsupported_schema", False),
        (JobFailed(FailureCode.GRAMMAR_TOO_COMPLEX, "x", retryable=False), 400, "grammar_too_complex", False),
    ],
    ids=lambda value: str(value),
)
def test_each_error_has_its_status(error: SparkleError, status: int, code: str, again: bool) -> None:
    fault = from_error(error)
    assert (fault.status, fault.code, "Retry-After" in fault.headers) == (status, code, again)


def test_every_failure_has_a_status() -> None:
    for code in FailureCode:
        assert from_error(JobFailed(code, "x", retryable=False)).status in (400, 409, 500, 504)


def test_a_fault_as_an_exception_tells_its_code_alone() -> None:
    fault = ApiFault(400, "invalid_request", "secret", "secret")
    assert "secret" not in str(fault) + repr(fault)


def test_fields_are_named_with_their_place() -> None:
    fault = validation(messages=[{"role": "user", "content": [{"type": "text"}]}])
    assert (fault.param, fault.message) == (
        "messages.0.content.0.text",
        "messages.0.content.0.text: Field required",
    )
    image = {"type": "image_url", "image_url": {"url": "secret"}}
    fault = validation(messages=[{"role": "user", "content": [image]}])
    assert fault.param == "messages.0.content.0.type"
    assert "image_url: is not supported" in fault.message
    assert "secret" not in fault.message


@pytest.mark.parametrize(
    ("form", "fields"),
    [
        (ChatRequest, {"response_format": {"type": "secret"}}),
        (ChatRequest, {"response_format": {"type": "' expected tags: secret"}}),
        (ChatRequest, {"tool_choice": "secret"}),
        (ChatRequest, {"tools": [{"type": "secret"}]}),
        (ChatRequest, {"messages": [{"role": "secret", "content": "x"}]}),
        (ChatRequest, {"reasoning_effort": "secret", "seed": "secret", "logprobs": "secret"}),
        (ResponseRequest, {"text": {"format": {"type": "secret"}}}),
        (ResponseRequest, {"input": [{"type": "secret"}], "include": ["secret"]}),
        (CompletionRequest, {"prompt": {"secret": "secret"}, "service_tier": "secret"}),
    ],
    ids=str,
)
def test_no_value_is_repeated(form: type[Part], fields: dict[str, object]) -> None:
    with pytest.raises(ValidationError) as error:
        form.model_validate(fields)
    assert "secret" not in json.dumps(from_validation(error.value).body())


def test_the_types_that_there_are_are_named() -> None:
    fault = validation(messages=[{"role": "user", "content": "x"}], response_format={"type": "xml"})
    types = "'text', 'json_object', 'json_schema', 'regex', 'grammar', 'choice'"
    assert (fault.param, fault.message) == (
        "response_format",
        f"response_format: type must be one of {types}",
    )


def test_what_looks_like_no_name_is_not_repeated() -> None:
    fault = validation(messages=[{"role": "user", "content": "x"}], **{"my secret: 4711": 1})
    assert "4711" not in fault.message
    many = validation(messages=[{"role": "user", "content": "x"}], **{f"f{n}": n for n in range(9)})
    assert many.message.endswith("; and 4 more")
