"""What an acknowledgement subject says of its delivery."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkle.errors import InvalidMessage
from sparkle.queue.delivery import Delivery
from sparkle.queue.envelope import Envelope

SUBJECT = "jobs.eu.p0.acme.0190a6f4-7c3e-7b1a-8000-000000000000"
counts = st.integers(min_value=0, max_value=2**40)


@given(
    attempt=counts, stored_ns=counts, pending=counts, form=st.sampled_from(["v1", "v2", "v2 with a token"])
)
def test_every_form_of_the_subject_gives_the_same_numbers(
    attempt: int, stored_ns: int, pending: int, form: str
) -> None:
    numbers = f"JOBS.eu-p0.{attempt}.11.12.{stored_ns}.{pending}"
    reply = {
        "v1": f"$JS.ACK.{numbers}",
        "v2": f"$JS.ACK._.ACCOUNT.{numbers}",
        "v2 with a token": f"$JS.ACK.hub.ACCOUNT.{numbers}.r4nd0m",
    }[form]
    delivery = Delivery.read(Envelope(SUBJECT, b"x", {"a": "b"}, reply))
    assert delivery == Delivery(SUBJECT, b"x", {"a": "b"}, reply, attempt, stored_ns / 1e9, pending)


@pytest.mark.parametrize(
    "reply", ["", "_INBOX.x", "$JS.ACK.a.b.c", "$JS.ACK.JOBS.eu-p0.one.2.3.4.5", "$JS.ACK.a.b.1.2.3.4.5.6"]
)
def test_any_other_reply_is_refused(reply: str) -> None:
    with pytest.raises(InvalidMessage):
        Delivery.read(Envelope(SUBJECT, b"", {}, reply))


def test_the_payload_is_not_shown() -> None:
    delivery = Delivery.read(Envelope(SUBJECT, b"secret", {}, "$JS.ACK.JOBS.eu-p0.1.2.3.4.5"))
    assert "secret" not in repr(delivery)
    assert "secret" not in repr(Envelope(SUBJECT, b"secret"))
