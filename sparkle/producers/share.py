"""How many jobs of a tenant wait in one client, and how many may. Pure; knows no queue."""

from __future__ import annotations

from collections import Counter

from sparkle.errors import TenantOverShare


class Share:
    """The jobs that no worker has begun yet, by tenant."""

    def __init__(self, max_waiting: int) -> None:
        """`max_waiting`: of one tenant at once."""
        self._max_waiting = max_waiting
        self._tenants: dict[str, str] = {}
        self._waiting: Counter[str] = Counter()

    def take(self, tenant: str, job: str) -> None:
        """A job of this tenant will wait. Raises TenantOverShare where no more may."""
        assert job not in self._tenants, "a job waits once"
        if self._waiting[tenant] >= self._max_waiting:
            raise TenantOverShare(
                f"tenant {tenant} has {self._waiting[tenant]:,} jobs waiting here and may have at most "
                f"{self._max_waiting:,}; wait until workers have begun some of them"
            )
        self._tenants[job] = tenant
        self._waiting[tenant] += 1

    def give_back(self, job: str) -> None:
        """A worker has begun the job, or it has its end. Unknown jobs are fine."""
        tenant = self._tenants.pop(job, None)
        if tenant is not None:
            self._waiting[tenant] -= 1
            if not self._waiting[tenant]:
                del self._waiting[tenant]

    def waiting(self, tenant: str) -> int:
        """Jobs of this tenant that wait."""
        return self._waiting[tenant]
