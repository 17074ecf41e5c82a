"""Whatever comes as a message of any kind is one, or a typed error that repeats nothing of it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkle.engine import frames
from sparkle.errors import SparkleError
from sparkle.queue.delivery import Delivery
from sparkle.queue.envelope import Envelope
from sparkle.queue.pull import PullEnd, read_status
from sparkle.queue.stored import json_object, read_ack
from sparkle.queue.tenant_key import TenantKey
from sparkle.schemas.codec import decode
from sparkle.schemas.export import MESSAGES
from sparkle.schemas.ids import new_job_id
from sparkle.schemas.subjects import JobAddress
from tests.hostile_messages import CANARY, HostileProducer, pack

NUM_MESSAGES = 1_000
"""Of each kind."""

KINDS = {str(kind.model_fields["kind"].default): kind for kind in MESSAGES}
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text() | st.binary(), inner, max_size=5),
    max_leaves=20,
)
FIELDS = st.dictionaries(st.text(), VALUES, max_size=6)


def refusal(read: Callable[..., object], *given: object) -> str:
    """What a reader says against something; empty when it takes it. Another error than ours fails."""
    try:
        read(*given)
    except SparkleError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_messages_of_each_kind_are_taken_or_refused_in_few_words(kind: str) -> None:
    sender = HostileProducer(5, tenant="acme", region="local")
    messages = [sender.of(kind, new_job_id()) for _ in range(NUM_MESSAGES)]
    said = Counter(refusal(decode, data, KINDS[kind]) for data in messages)
    assert not [text for text in said if CANARY in text or len(text) > 2_000]
    # some are sound, most are not, and not all in the same way
    assert NUM_MESSAGES // 20 < said[""] < NUM_MESSAGES * 3 // 4
    assert len(said) > 10


@given(kind=st.sampled_from(sorted(KINDS)), fields=FIELDS)
def test_any_fields_are_a_message_or_refused(kind: str, fields: dict[str, Any]) -> None:
    for version in ("1.0", "1.99", fields.get("v")):
        refusal(decode, pack({**fields, "kind": kind, "v": version}), KINDS[kind])


@given(st.data())
def test_a_message_with_any_value_in_any_field_is_one_or_refused(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(sorted(KINDS)))
    name = data.draw(st.sampled_from(sorted(KINDS[kind].model_fields)))
    sound = {"kind": kind, "v": "1.0", "job": new_job_id(), "prompt": "?"}
    refusal(decode, pack({**sound, name: data.draw(VALUES)}), KINDS[kind])


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused_by_every_reader(data: bytes) -> None:
    text = data.decode(errors="replace")
    refusal(decode, data, *MESSAGES)
    refusal(frames.decode, data)
    refusal(frames.body_length, data[:4])
    refusal(JobAddress.parse, text)
    refusal(Delivery.read, Envelope("jobs", data, reply=text))
    refusal(read_ack, data)
    refusal(TenantKey("acme", "k1", bytes(32)).open, "here", data)
    assert isinstance(json_object(data), dict)
    status = read_status(Envelope("inbox", b"", {"Status": text[:3], "Description": text}))
    assert status is None or isinstance(status, PullEnd)


@given(st.lists(st.text(alphabet="$JSACK.0123456789-x", max_size=6), max_size=14))
def test_any_acknowledgement_subject_is_read_or_refused(tokens: list[str]) -> None:
    refusal(Delivery.read, Envelope("jobs", b"", reply=".".join(("$JS", "ACK", *tokens))))


@given(st.recursive(st.none() | st.integers() | st.text(), st.lists, max_leaves=8), st.text())
def test_any_answer_of_the_server_is_an_outcome_or_an_error(value: object, text: str) -> None:
    error = {"err_code": value, "description": text}
    for answer in ({"error": value}, {"error": error}, {"seq": value}, value):
        refusal(read_ack, json.dumps(answer).encode())


@given(kind=st.sampled_from(("delta", "finished", "failed", "ready", "submit", "x")), fields=FIELDS)
def test_any_frame_is_read_or_refused(kind: str, fields: dict[str, Any]) -> None:
    for name in ("job", "code", "channel", "finish_reason", "tokens"):
        refusal(frames.decode, pack({**fields, "kind": kind, name: fields.get("", "")}))


def test_every_kind_of_the_contract_is_sent() -> None:
    sender = HostileProducer(6, tenant="acme", region="local")
    for kind, message in KINDS.items():
        messages = [sender.of(kind, new_job_id()) for _ in range(100)]
        assert [data for data in messages if not refusal(decode, data, message)], kind
