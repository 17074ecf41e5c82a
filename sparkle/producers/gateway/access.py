"""Who asks, and what an instance's access must be able to say. Knows neither HTTP nor where keys are kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Principal:
    """Who asks, as their key says."""

    tenant: str
    region: str
    """Where their content may go: a gateway of another region refuses them."""

    models: tuple[str, ...] = ()
    """Models that they may ask for, the first of them where a request names none; empty is any served one."""


class Reservation(Protocol):
    """Tokens set aside for jobs that are about to run."""

    async def ended(self, job: str, *, accepted: bool) -> None:
        """The job has ended, however; told once a job, and never raises.

        `accepted` says whether the queue held it: if not, no usage record of it will come.
        """
        ...


class Access(Protocol):
    """Keys, allowances and rate limits."""

    async def authenticate(self, key: str | None) -> Principal:
        """Whose key this is. Raises KeyRefused without a valid one, QueueError when nobody can tell."""
        ...

    async def reserve(self, principal: Principal, jobs: Mapping[str, int]) -> Reservation:
        """Set aside the most tokens that each of these jobs can use, by job id: all of them or none.

        Raises AllowanceSpent, RateLimited, AccessError for more than may ever run, QueueError when nobody can
        tell.
        """
        ...


class OpenAccess:
    """Everybody on this machine is one tenant, without a key and without limits."""

    def __init__(self, *, tenant: str, region: str) -> None:
        self._principal = Principal(tenant=tenant, region=region)

    async def authenticate(self, key: str | None) -> Principal:
        """The one tenant, whatever the key: OpenAI's clients send one always."""
        return self._principal

    async def reserve(self, principal: Principal, jobs: Mapping[str, int]) -> Reservation:
        """Nothing is counted."""
        return _Uncounted()


class _Uncounted:
    """The reservation of somebody without an allowance."""

    async def ended(self, job: str, *, accepted: bool) -> None:
        """Nothing to give back."""
