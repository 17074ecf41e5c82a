"""When a job is published, looked up and published again until its end is in. Knows no queue and no clock.

A job's way through the box; every step is handed out once by `due` and then reported back:

    TO_PUBLISH --due--> PUBLISHING --stored--> WAITING --due--> LOOKING --missing--> TO_PUBLISH, number + 1
        ^                    |                    ^                 |
        +------- again ------+                    +----- again -----+

The publication number is what the server knows a message by. It stays the same while nobody knows whether
the message was stored, so that the server drops the double; it rises only after no result was found, so that
the server does not mistake a job that was lost for one it has. What is queued or running it refuses anyway.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from sparkle.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxTiming:
    """How long the outbox waits before each kind of step; `jitter_share` is added at random."""

    retry_s: float = 0.1
    """After a step that failed; doubles with each failure in a row."""

    retry_max_s: float = 5.0
    """The longest wait after a failed step."""

    silence_s: float = 15.0
    """Without a sign of life for this long, a job is looked up; doubles while it stays silent."""

    silence_max_s: float = 60.0
    """The longest wait of a silent job."""

    reconnect_spread_s: float = 0.5
    """After a reconnect, the jobs are looked up spread over this time."""

    lost_grace_s: float = 5.0
    """After a reconnect, a job that is not found is published again only after this: its worker, who lost the
    connection as well, has time to show that it still runs."""

    jitter_share: float = 0.25
    """The most that is added to a wait, as a share of it."""

    def __post_init__(self) -> None:
        for low, high in (("retry_s", "retry_max_s"), ("silence_s", "silence_max_s")):
            if not 0 < getattr(self, low) <= getattr(self, high):
                limits = f"above 0 and at most {high}, {getattr(self, high)}"
                raise ConfigError(f"{low} is {getattr(self, low)} but must be {limits}")
        for name in ("reconnect_spread_s", "lost_grace_s", "jitter_share"):
            if not getattr(self, name) >= 0:
                raise ConfigError(f"{name} is {getattr(self, name)} but must be at least 0")


@dataclass(frozen=True, slots=True)
class Publish:
    """Publish the job under this number; report stored, already_queued or again."""

    job: str
    publication: int


@dataclass(frozen=True, slots=True)
class Look:
    """Look for the job's stored end; report missing or again, or remove the job when it is there."""

    job: str


@dataclass(frozen=True, slots=True)
class Expire:
    """The job's deadline has passed; the box holds it no more."""

    job: str


Step = Publish | Look | Expire


class _Phase(StrEnum):
    TO_PUBLISH = "to_publish"
    PUBLISHING = "publishing"
    WAITING = "waiting"
    LOOKING = "looking"


@dataclass(slots=True)
class _Entry:
    due_s: float
    deadline_s: float | None
    phase: _Phase = _Phase.TO_PUBLISH
    publication: int = 1
    failures: int = 0  # steps in a row that failed
    silences: int = 0  # lookups since the last sign of life
    doubted: bool = False  # the connection was lost while a publish was under way
    hold_until_s: float = 0.0  # a lost job is not published again before


class Outbox:
    """The jobs without an end, and what is to be done about each. Times are seconds of any steady clock."""

    def __init__(self, timing: OutboxTiming, draw: Callable[[], float]) -> None:
        """`draw` gives a number from 0 up to 1 for each jittered wait."""
        self._timing = timing
        self._draw = draw
        self._entries: dict[str, _Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, job: str) -> bool:
        return job in self._entries

    def add(self, job: str, *, now_s: float, deadline_s: float | None = None) -> None:
        """Take a job in; it is to be published at once."""
        assert job not in self._entries, "a job is added once"
        self._entries[job] = _Entry(due_s=now_s, deadline_s=deadline_s)

    def remove(self, job: str) -> None:
        """The job has its end, or is not wanted any more. Unknown jobs are fine."""
        self._entries.pop(job, None)

    def next_due_s(self) -> float | None:
        """When `due` has something next; None when only reports can bring it on."""
        return min((time_s for entry in self._entries.values() for time_s in _times(entry)), default=None)

    def due(self, now_s: float) -> list[Step]:
        """The steps to take now, each handed out once."""
        expired = [
            job
            for job, entry in self._entries.items()
            if entry.deadline_s is not None and entry.deadline_s <= now_s
        ]
        for job in expired:
            self.remove(job)
        steps: list[Step] = [Expire(job) for job in expired]
        for job, entry in self._entries.items():
            if entry.due_s > now_s:
                continue
            if entry.phase is _Phase.TO_PUBLISH:
                entry.phase = _Phase.PUBLISHING
                steps.append(Publish(job, entry.publication))
            elif entry.phase is _Phase.WAITING:
                entry.phase = _Phase.LOOKING
                steps.append(Look(job))
        return steps

    def stored(self, job: str, now_s: float) -> None:
        """The publish was acknowledged."""
        if entry := self._in(job, _Phase.PUBLISHING):
            self._wait(entry, now_s, at_once=entry.doubted)

    def already_queued(self, job: str, now_s: float) -> None:
        """The server holds the job, or dropped the publish as a double.

        A double of the first publication may be of a job that has ended, so that one is looked up at once.
        """
        if entry := self._in(job, _Phase.PUBLISHING):
            self._wait(entry, now_s, at_once=entry.doubted or entry.publication == 1)

    def missing(self, job: str, now_s: float) -> None:
        """No stored end was found: publish again under the next number."""
        if entry := self._in(job, _Phase.LOOKING):
            entry.phase, entry.due_s = _Phase.TO_PUBLISH, max(now_s, entry.hold_until_s)
            entry.publication += 1
            entry.failures = 0
            entry.silences += 1

    def again(self, job: str, now_s: float) -> None:
        """The step failed or nobody knows how it ended: the same again after a while."""
        if entry := self._in(job, _Phase.PUBLISHING):
            entry.phase = _Phase.TO_PUBLISH
        elif entry := self._in(job, _Phase.LOOKING):
            entry.phase = _Phase.WAITING
        else:
            return
        timing = self._timing
        wait_s = min(timing.retry_s * 2.0 ** min(entry.failures, 32), timing.retry_max_s)
        entry.due_s = now_s + self._jittered(wait_s)
        entry.failures += 1

    def sign_of_life(self, job: str, now_s: float) -> None:
        """Part of the answer came, so the job runs: whatever was planned for it can wait."""
        entry = self._entries.get(job)
        if entry is None:
            return
        entry.silences = 0
        if entry.phase is not _Phase.PUBLISHING:
            self._wait(entry, now_s, at_once=False)

    def reconnected(self, now_s: float) -> None:
        """The connection was lost and is back: the server may have lost everything, answers included."""
        for entry in self._entries.values():
            entry.doubted = entry.phase is _Phase.PUBLISHING
            entry.hold_until_s = now_s + self._timing.lost_grace_s
            if entry.phase in (_Phase.WAITING, _Phase.TO_PUBLISH):
                entry.due_s = min(entry.due_s, now_s + self._timing.reconnect_spread_s * self._draw())

    def _in(self, job: str, phase: _Phase) -> _Entry | None:
        """The job's entry if it is in this phase; a report that comes too late finds it elsewhere."""
        entry = self._entries.get(job)
        return entry if entry is not None and entry.phase is phase else None

    def _wait(self, entry: _Entry, now_s: float, *, at_once: bool) -> None:
        timing = self._timing
        silence_s = min(timing.silence_s * 2.0 ** min(entry.silences, 32), timing.silence_max_s)
        entry.phase = _Phase.WAITING
        entry.due_s = now_s if at_once else now_s + self._jittered(silence_s)
        entry.failures = 0
        entry.doubted = False

    def _jittered(self, wait_s: float) -> float:
        return wait_s * (1.0 + self._timing.jitter_share * self._draw())


def _times(entry: _Entry) -> list[float]:
    times = [] if entry.phase in (_Phase.PUBLISHING, _Phase.LOOKING) else [entry.due_s]
    return times if entry.deadline_s is None else [*times, entry.deadline_s]
