"""What the server's answer to a publish means."""

from __future__ import annotations

import json

import pytest

from sparkle.errors import MessageTooLarge, PublishUncertain, QueueFull, SparkleError, TopologyMissing
from sparkle.queue.stored import StoreOutcome, read_ack


def refusal(code: int, text: str) -> bytes:
    """An answer as nats-server 2.15 writes it."""
    return json.dumps(
        {"error": {"code": 503, "err_code": code, "description": text}, "stream": "JOBS", "seq": 0}
    ).encode()


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (b'{"stream":"JOBS","seq":7}', StoreOutcome.STORED),
        (b'{"stream":"JOBS","seq":7,"duplicate":true}', StoreOutcome.DUPLICATE),
        (refusal(10077, "maximum messages per subject exceeded"), StoreOutcome.SUBJECT_TAKEN),
        (refusal(10071, "wrong last sequence: 3"), StoreOutcome.SUBJECT_TAKEN),
    ],
)
def test_an_answer_has_one_outcome(answer: bytes, outcome: StoreOutcome) -> None:
    assert read_ack(answer) is outcome


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (refusal(10077, "maximum messages exceeded"), QueueFull),
        (refusal(10077, "maximum bytes exceeded"), QueueFull),
        (refusal(10028, "resource limits exceeded for account"), QueueFull),
        (refusal(10054, "message size exceeds maximum allowed"), MessageTooLarge),
        (refusal(10060, "expected stream does not match"), TopologyMissing),
        (refusal(10158, "duplicate message id is in process"), PublishUncertain),
        (refusal(10008, "JetStream system temporarily unavailable"), PublishUncertain),
        (b"", PublishUncertain),
        (b"[1]", PublishUncertain),
        (b"{}", PublishUncertain),
    ],
)
def test_a_refusal_is_one_error_of_ours(answer: bytes, error: type[SparkleError]) -> None:
    with pytest.raises(error):
        read_ack(answer)


def test_only_what_may_help_is_retryable() -> None:
    with pytest.raises(PublishUncertain) as uncertain:
        read_ack(b"{}")
    with pytest.raises(MessageTooLarge) as too_large:
        read_ack(refusal(10054, "message size exceeds maximum allowed"))
    assert (uncertain.value.retryable, too_large.value.retryable) == (True, False)
