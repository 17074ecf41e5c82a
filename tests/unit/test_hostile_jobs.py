"""Whatever a producer sends is a job or a typed error that repeats nothing of it, and is cheap to refuse."""

from __future__ import annotations

import pytest

from sparkle.errors import ContractError, InvalidMessage
from sparkle.schemas.codec import MAX_DESCRIBED, decode
from sparkle.schemas.ids import new_job_id
from sparkle.schemas.job import Job
from sparkle.schemas.packing import MAX_VALUES
from tests.hostile_messages import CANARY, HostileProducer, pack

NUM_MESSAGES = 4_000


def test_damaged_jobs_are_jobs_or_typed_errors_without_content() -> None:
    producer = HostileProducer(1, tenant="acme", region="local")
    refusals = [refusal for _ in range(NUM_MESSAGES) if (refusal := _refusal(producer.message(new_job_id())))]
    assert not [refusal for refusal in refusals if CANARY in refusal]
    # both kinds came, or this proves nothing
    assert NUM_MESSAGES // 2 < len(refusals) < NUM_MESSAGES


def _refusal(data: bytes) -> str:
    """What the codec says against these bytes; empty when they are a job."""
    try:
        decode(data, Job)
    except ContractError as error:
        return str(error)
    return ""


def _job(**fields: object) -> bytes:
    return pack({"kind": "job", "v": "1.0", "tenant": "acme", "region": "local", "prompt": "?", **fields})


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"response_format": {CANARY: b"\xff"}}, "response_format: "),
        ({"tools": [{CANARY: {CANARY: b"\xff"}}]}, "tools.0: "),
        ({"sampling": {CANARY.encode(): 1}}, "sampling: has a field that is not in the contract"),
        ({"sampling": {CANARY: 1}}, "sampling: has a field that is not in the contract"),
        ({"messages": [{"role": CANARY, "content": "?"}]}, "messages.0.role: "),
        ({"messages": [{"role": "user", "content": [{"type": CANARY}]}]}, "messages.0.content"),
    ],
)
def test_an_error_names_the_contracts_fields_and_no_key_of_the_sender(
    fields: dict[str, object], place: str
) -> None:
    with pytest.raises(InvalidMessage) as caught:
        decode(_job(**fields), Job)
    assert place in str(caught.value)
    assert CANARY not in str(caught.value)


def test_of_very_many_wrong_fields_only_the_number_is_told() -> None:
    unknown = {f"x{number}": 1 for number in range(MAX_DESCRIBED + 1)}
    with pytest.raises(InvalidMessage) as caught:
        decode(_job(**unknown), Job)
    assert str(caught.value) == "message: 1001 fields are wrong or not in the contract"


@pytest.mark.parametrize(
    "value",
    [[{"b": 1}] * (MAX_VALUES // 3), [1] * MAX_VALUES, [[1] * 1023] * 1024],
    ids=["maps", "one array", "arrays"],
)
def test_a_message_that_would_be_far_larger_in_memory_is_refused_before(value: object) -> None:
    with pytest.raises(InvalidMessage, match="values"):
        decode(_job(response_format={"a": value}), Job)


def test_the_longest_prompt_of_tokens_is_no_such_message() -> None:
    tokens = [1] * 262_144
    job = decode(pack({"kind": "job", "v": "1.0", "prompt_tokens": tokens}), Job)
    assert job.prompt_tokens == tokens
