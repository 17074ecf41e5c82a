"""How long one job waited, took to its first token and took in all. Seconds only; knows no queue."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class JobTimes:
    """Moments of one job; all but `queue_s` on one monotonic clock."""

    queue_s: float
    """From storing in the queue to the lease."""

    leased_s: float
    """When the lease began."""

    first_token_s: float | None = None
    """From the lease to the first token; None before it."""

    def token_came(self, now_s: float) -> None:
        """A token came; only the first one counts."""
        if self.first_token_s is None:
            self.first_token_s = now_s - self.leased_s

    def until_first_token_s(self, now_s: float) -> float:
        """From the lease to the first token, or to now while there is none."""
        return self.total_s(now_s) if self.first_token_s is None else self.first_token_s

    def total_s(self, now_s: float) -> float:
        """From the lease to now."""
        return now_s - self.leased_s

    @classmethod
    def begin(cls, *, stored_s: float, unix_s: float, now_s: float) -> JobTimes:
        """The lease begins now; `stored_s` and `unix_s` are Unix times of two machines, so never negative."""
        return cls(queue_s=max(0.0, unix_s - stored_s), leased_s=now_s)
