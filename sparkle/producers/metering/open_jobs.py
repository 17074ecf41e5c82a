"""A tenant's jobs whose usage records are not in, and the tokens that they can use. Knows no account."""

from __future__ import annotations

from collections.abc import Callable, Mapping

OnRecord = Callable[[int, int], None]
"""Told of each job that leaves: the most tokens it could use, the tokens it used."""


class OpenJobs:
    """Jobs from their start until their records are in."""

    def __init__(self, on_record: OnRecord) -> None:
        self._on_record = on_record
        self._most_tokens: dict[str, int] = {}
        self._ended_s: dict[str, float] = {}
        self.needed_tokens = 0
        """What all of them together can use at most."""

    def __len__(self) -> int:
        return len(self._most_tokens)

    @property
    def num_running(self) -> int:
        """Those that have not ended."""
        return len(self._most_tokens) - len(self._ended_s)

    @property
    def has_ended_ones(self) -> bool:
        """Whether a record is to be expected."""
        return bool(self._ended_s)

    def start(self, jobs: Mapping[str, int]) -> None:
        """These begin, each with the most tokens that it can use."""
        self._most_tokens |= jobs
        self.needed_tokens += sum(jobs.values())

    def ended(self, job: str, now_s: float) -> None:
        """The job has ended, and its record will come; one that is in already changes nothing."""
        if job in self._most_tokens:
            self._ended_s.setdefault(job, now_s)

    def leave(self, job: str, used_tokens: int) -> None:
        """Its record is in, or none will come; a job that is not here is another gateway's."""
        most_tokens = self._most_tokens.pop(job, None)
        if most_tokens is not None:
            self._ended_s.pop(job, None)
            self.needed_tokens -= most_tokens
            self._on_record(most_tokens, used_tokens)

    def ended_before(self, limit_s: float) -> list[str]:
        """Those whose end is at least as long ago."""
        return [job for job, ended_s in self._ended_s.items() if ended_s <= limit_s]
