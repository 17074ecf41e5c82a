"""How fast a tenant may go at one gateway: requests, tokens, running jobs. Knows no clock, no account."""

from __future__ import annotations

from collections.abc import Mapping

from sparkle.errors import AccessError, RateLimited
from sparkle.producers.metering.tenant import Limits

_MINUTE_S = 60.0
_RETRY_RUNNING_S = 1.0


class Bucket:
    """What may pass in a minute, filling up evenly; below 0 where more was taken than a minute's worth."""

    def __init__(self, per_minute: int) -> None:
        """Full."""
        self.per_minute = per_minute
        self._level = float(per_minute)
        self._at_s: float | None = None

    def wait_s(self, amount: int, now_s: float) -> float:
        """How long until `amount` can be taken; a full one gives any amount."""
        if self._at_s is not None:
            self.give_back((now_s - self._at_s) * self.per_minute / _MINUTE_S)
        self._at_s = now_s
        return max(0.0, (min(amount, self.per_minute) - self._level) * _MINUTE_S / self.per_minute)

    def take(self, amount: float) -> None:
        """So much passes."""
        self._level -= amount

    def give_back(self, amount: float) -> None:
        """So much did not pass, or is new; what is over a minute's worth is lost."""
        self._level = min(float(self.per_minute), self._level + amount)


class Rates:
    """One tenant's limits and what is left of them."""

    def __init__(self, limits: Limits) -> None:
        """As if nothing had passed yet."""
        self.limits = limits
        self._requests = _bucket(limits.requests_per_minute)
        self._tokens = _bucket(limits.tokens_per_minute)

    def start(self, jobs: Mapping[str, int], *, num_running: int, now_s: float) -> None:
        """These jobs begin, by id the most tokens that each can use.

        Raises RateLimited, and AccessError where so many never may: then none does.
        """
        most_running = self.limits.max_running
        if most_running is not None and len(jobs) > most_running:
            raise AccessError(
                f"this request is {len(jobs)} jobs and at most {most_running} of this tenant may run; "
                "ask for fewer choices"
            )
        if most_running is not None and num_running + len(jobs) > most_running:
            raise RateLimited(
                f"{num_running} jobs are running and at most {most_running} may; wait until some have ended",
                retry_after_s=_RETRY_RUNNING_S,
            )
        num_tokens = sum(jobs.values())
        for bucket, amount, what in (
            (self._requests, len(jobs), "requests"),
            (self._tokens, num_tokens, "tokens"),
        ):
            if bucket is not None and (wait_s := bucket.wait_s(amount, now_s)) > 0:
                raise RateLimited(
                    f"at most {bucket.per_minute} {what} may begin in a minute; try again in {wait_s:.1f} s",
                    retry_after_s=wait_s,
                )
        for bucket, amount in ((self._requests, len(jobs)), (self._tokens, num_tokens)):
            if bucket is not None:
                bucket.take(amount)

    def refused(self, jobs: Mapping[str, int]) -> None:
        """They did not begin after all."""
        for bucket, amount in ((self._requests, len(jobs)), (self._tokens, sum(jobs.values()))):
            if bucket is not None:
                bucket.give_back(amount)

    def recorded(self, most_tokens: int, used_tokens: int) -> None:
        """A job that began is known to have used so many of the most that it could."""
        if self._tokens is not None:
            self._tokens.give_back(most_tokens - used_tokens)


def _bucket(per_minute: int | None) -> Bucket | None:
    return None if per_minute is None else Bucket(per_minute)
