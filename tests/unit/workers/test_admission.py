"""Each refusal before a job starts, with its code, and without the sender's words in it."""

from __future__ import annotations

import pytest

from sparkle.errors import FailureCode
from sparkle.schemas.answer import Failure
from sparkle.schemas.codec import MAX_MESSAGE_BYTES, encode
from sparkle.schemas.ids import new_job_id
from sparkle.schemas.job import Job
from sparkle.schemas.packing import pack, unpack
from sparkle.schemas.priority import PriorityClass
from sparkle.schemas.subjects import JobAddress
from sparkle.workers.admission import (
    check_deadline,
    check_deliveries,
    check_length,
    read_job,
    refusal,
    retry_delay_s,
)

SECRET = "the-secret-prompt"
JOB = Job(prompt=SECRET, tenant="acme", region="eu", deadline_ms=10_000)
ADDRESS = JobAddress(region="eu", priority=PriorityClass.P1, tenant="acme", job=JOB.id)


def changed(**fields: object) -> bytes:
    return pack({**unpack(encode(JOB)), **fields})


def test_a_good_job_is_read_as_it_was_sent() -> None:
    assert read_job(encode(JOB), ADDRESS, 1) == JOB


@pytest.mark.parametrize(
    ("payload", "code"),
    [
        (b"", FailureCode.INVALID_JOB),
        (SECRET.encode(), FailureCode.INVALID_JOB),
        (pack({"kind": "chunk", "v": "1.0"}), FailureCode.INVALID_JOB),
        (changed(max_tokens=SECRET), FailureCode.INVALID_JOB),
        (changed(max_tokens=0), FailureCode.INVALID_JOB),
        (changed(**{SECRET: 1}), FailureCode.INVALID_JOB),
        (changed(tools=[{"name": SECRET}]), FailureCode.INVALID_JOB),
        (changed(prompt=SECRET * (MAX_MESSAGE_BYTES // len(SECRET))), FailureCode.INVALID_JOB),
        (changed(v="2.0"), FailureCode.UNSUPPORTED),
    ],
    ids=["empty", "no-msgpack", "no-job", "type", "bound", "unknown-field", "reserved", "too-large", "major"],
)
def test_a_bad_message_is_refused_without_its_content(payload: bytes, code: FailureCode) -> None:
    refused = read_job(payload, ADDRESS, 3)
    assert isinstance(refused, Failure)
    assert (refused.job, refused.attempt, refused.code, refused.retryable) == (JOB.id, 3, code, False)
    assert refused.message
    assert SECRET not in refused.message


@pytest.mark.parametrize(
    ("field", "value"),
    [("id", new_job_id()), ("tenant", "other"), ("region", "us"), ("tenant", None)],
    ids=["id", "tenant", "region", "no-tenant"],  # a new id would name it anew in every process
)
def test_a_job_that_is_not_its_subjects_is_refused(field: str, value: str | None) -> None:
    refused = read_job(changed(**{field: value}), ADDRESS, 1)
    assert isinstance(refused, Failure)
    assert (refused.job, refused.code) == (JOB.id, FailureCode.INVALID_JOB)
    assert refused.message == f"{field}: not the one in the message's subject"


def test_the_last_delivery_in_vain_is_not_tried_and_those_before_it_are() -> None:
    assert check_deliveries(ADDRESS, 4, 0, 5) is None
    refused = check_deliveries(ADDRESS, 5, 0, 5)
    assert refused is not None
    assert (refused.code, refused.attempt, refused.retryable) == (FailureCode.POISON_JOB, 5, False)
    assert check_deliveries(ADDRESS, 9, 0, 5) is not None
    # deliveries that wrote something were not in vain, nor were those before them
    assert check_deliveries(ADDRESS, 9, 5, 5) is None
    assert check_deliveries(ADDRESS, 10, 5, 5) is not None
    # a job that was lost and published again counts its deliveries anew
    assert check_deliveries(ADDRESS, 1, 9, 5) is None


def test_a_deadline_counts_to_the_millisecond() -> None:
    assert check_deadline(JOB, ADDRESS, 1, 9.999) is None
    refused = check_deadline(JOB, ADDRESS, 1, 10.25)
    assert refused is not None
    assert refused.code is FailureCode.DEADLINE_EXCEEDED
    assert refused.message == "the deadline passed 250 ms before the job started"
    assert check_deadline(JOB.evolve(deadline_ms=None), ADDRESS, 1, 1e9) is None


def test_token_ids_must_leave_room_for_an_answer() -> None:
    ids = JOB.evolve(prompt=None, prompt_tokens=[7] * 64)
    assert check_length(ids, ADDRESS, 2, 65) is None
    refused = check_length(ids, ADDRESS, 2, 64)
    assert refused is not None
    assert (refused.code, refused.attempt, refused.retryable) == (FailureCode.TOO_LONG, 2, False)
    assert "has 64 tokens" in refused.message
    assert "room for 64" in refused.message
    # of text only the engine knows the length
    assert check_length(JOB.evolve(prompt="a" * 1000), ADDRESS, 2, 64) is None


def test_more_token_ids_than_any_context_are_refused_with_both_numbers() -> None:
    fields = unpack(encode(JOB.evolve(prompt=None, prompt_tokens=[7])))
    refused = read_job(pack({**fields, "prompt_tokens": [7] * 262_145}), ADDRESS, 1)
    assert isinstance(refused, Failure)
    assert refused.code is FailureCode.INVALID_JOB
    assert refused.message.startswith("prompt_tokens: ")
    assert "262144" in refused.message
    assert "262145" in refused.message


def test_a_refusal_is_cut_to_what_a_failure_holds() -> None:
    assert len(refusal(ADDRESS, 1, FailureCode.ENGINE_ERROR, "x" * 5000).message) == 2000


@pytest.mark.parametrize(("delivery", "delay_s"), [(1, 1.0), (2, 2.0), (5, 16.0), (6, 30.0), (100_000, 30.0)])
def test_a_retry_waits_twice_as_long_each_time_up_to_half_a_minute(delivery: int, delay_s: float) -> None:
    assert retry_delay_s(delivery) == delay_s
