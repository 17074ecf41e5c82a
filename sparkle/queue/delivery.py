"""A job's message as the server handed it over, with what its ack subject says. Knows no connection."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sparkle.errors import InvalidMessage
from sparkle.queue.envelope import Envelope
from sparkle.schemas import subjects

_NS_PER_S = 1_000_000_000
_V1_TOKENS = 9
_V2_MIN_TOKENS = 11


@dataclass(frozen=True, slots=True)
class Delivery:
    """One delivery of one job."""

    subject: str
    """The job's own subject."""

    payload: bytes = field(repr=False)
    """The job, not yet decoded."""

    headers: Mapping[str, str]
    ack_subject: str
    """Where its fate is told."""

    attempt: int
    """Which delivery of this message it is, from 1."""

    stored_s: float
    """When the queue stored it, Unix time; a redelivery does not change it."""

    pending: int
    """Messages of the same class that wait behind it."""

    @property
    def is_repeated(self) -> bool:
        """Whether the job was delivered or published before, so that part of its answer may be known."""
        return self.attempt > 1 or subjects.PUBLICATION_HEADER in self.headers

    @classmethod
    def read(cls, envelope: Envelope) -> Delivery:
        """The delivery in a message. Raises InvalidMessage when its reply is no ack subject."""
        attempt, stored_ns, pending = _ack_numbers(envelope.reply)
        return cls(
            subject=envelope.subject,
            payload=envelope.payload,
            headers=envelope.headers,
            ack_subject=envelope.reply,
            attempt=attempt,
            stored_s=stored_ns / _NS_PER_S,
            pending=pending,
        )


def _ack_numbers(subject: str) -> tuple[int, int, int]:
    """Deliveries, store time in ns, messages behind: from an ack subject of either form (ADR-15).

    $JS.ACK.<stream>.<consumer>.<delivered>.<stream seq>.<consumer seq>.<time>.<pending>, or with
    <domain>.<account> before the stream and, from some servers, one more token at the end.
    """
    tokens = subject.split(".")
    if tokens[:2] != ["$JS", "ACK"] or not (len(tokens) == _V1_TOKENS or len(tokens) >= _V2_MIN_TOKENS):
        raise InvalidMessage("reply: not an acknowledgement subject")
    first = 4 if len(tokens) == _V1_TOKENS else 6
    try:
        delivered, _, _, stored_ns, pending = (int(token) for token in tokens[first : first + 5])
    except ValueError:
        raise InvalidMessage("reply: an acknowledgement subject without its numbers") from None
    return delivered, stored_ns, pending
