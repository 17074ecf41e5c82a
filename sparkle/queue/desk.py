"""What a puller knows of one class: whether it may have work, what was asked, whether it answers."""

from __future__ import annotations

from dataclasses import dataclass

from sparkle.queue.pull import HEALTHY, Pull, PullEnd

_FIRST_BACKOFF_S = 0.1


@dataclass(slots=True)
class Desk:
    """One class as this worker sees it."""

    maybe: bool = True
    """It may have work: a bell rang, or it was not yet found empty."""

    pull: Pull | None = None
    """The one request that is outstanding."""

    rang: bool = False
    """A job was stored since the request went out: an empty answer may be older than that."""

    after_bell: bool = False
    """The request that is out went out for a bell."""

    in_doubt: bool = False
    """A bell rang, yet it was found empty: another worker was sooner, or the consumer is behind."""

    failures: int = 0
    """Requests in a row that went wrong."""

    resting: bool = False
    """It is not asked until its back-off is over."""

    missing_since_s: float | None = None
    """Since when the server says that there is no such consumer."""

    @property
    def wants_asking(self) -> bool:
        """Whether to ask it now, with a slot free."""
        return self.maybe and self.pull is None and not self.resting

    @property
    def wants_waiting(self) -> bool:
        """Whether a waiting request can be left with it."""
        return not self.maybe and self.pull is None and not self.resting

    def ask(self, pull: Pull) -> None:
        """A request goes out."""
        self.pull = pull
        self.after_bell, self.rang, self.in_doubt = self.rang, False, False

    def ring(self) -> None:
        """A job was stored."""
        self.maybe = self.rang = True

    def ended(self, end: PullEnd, *, now_s: float) -> None:
        """Its request has ended; an unhealthy end begins a rest."""
        self.pull = None
        self.maybe = self.rang or end is not PullEnd.EMPTY
        self.in_doubt = self.after_bell and not self.maybe
        if end in HEALTHY:
            self.failures = 0
            self.missing_since_s = None
            return
        self.failures += 1
        self.resting = True
        if end is PullEnd.MISSING and self.missing_since_s is None:
            self.missing_since_s = now_s

    def backoff_s(self, most_s: float) -> float:
        """How long its rest lasts: doubled with each failure, up to `most_s`."""
        return min(most_s, _FIRST_BACKOFF_S * 2.0 ** min(self.failures - 1, 16))

    def missing_s(self, now_s: float) -> float:
        """For how long it has been missing."""
        return 0.0 if self.missing_since_s is None else now_s - self.missing_since_s

    def rested(self) -> None:
        """Its back-off is over: it is asked again."""
        self.resting = False
        self.maybe = True

    def look_again(self) -> None:
        """The doubt has had its time: it is asked once more, unless that has been done."""
        self.maybe = self.maybe or self.in_doubt
        self.in_doubt = False

    def forget(self) -> None:
        """The connection is a new one: nothing is outstanding, and all may have changed."""
        self.pull = None
        self.in_doubt = False
        self.rested()
