"""Keeps chunks that may be asked for again, within a bound of bytes. Pure: the caller tells the time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Sent = tuple[str, bytes, Mapping[str, str]]
"""A subject, and the bytes and headers sent to it."""


@dataclass(slots=True)
class _Answer:
    attempt: int
    first_seq: int
    """Of the oldest chunk still held."""

    chunks: list[Sent] = field(default_factory=list[Sent])
    size_bytes: int = 0
    ended_s: float = 0.0

    def follows(self, attempt: int, seq: int) -> bool:
        return self.attempt == attempt and self.first_seq + len(self.chunks) == seq


class KeptChunks:
    """The encoded chunks of running jobs and of those that ended a short while ago."""

    def __init__(self, *, max_bytes: int, after_end_s: float) -> None:
        self.size_bytes = 0
        """Of all chunks held."""
        self._max_bytes = max_bytes
        self._after_end_s = after_end_s
        # both in the order in which they go when room is needed
        self._running: dict[str, _Answer] = {}
        self._ended: dict[str, _Answer] = {}

    def add(self, job: str, attempt: int, seq: int, sent: Sent, *, now_s: float) -> None:
        """Keep a chunk; one that does not follow the last, or of another attempt, replaces all before it."""
        answer = self._running.get(job)
        if answer is None or not answer.follows(attempt, seq):
            self._drop(job)
            answer = self._running[job] = _Answer(attempt, seq)
        answer.chunks.append(sent)
        answer.size_bytes += len(sent[1])
        self.size_bytes += len(sent[1])
        self.trim(now_s=now_s)

    def end(self, job: str, *, now_s: float) -> None:
        """The job has ended: its chunks are kept for `after_end_s` more."""
        answer = self._running.pop(job, None)
        if answer is not None:
            answer.ended_s = now_s
            self._ended[job] = answer

    def since(self, job: str, attempt: int, from_seq: int) -> list[Sent]:
        """The chunks from `from_seq` on; none when another attempt is held or the first is gone."""
        answer = self._running.get(job) or self._ended.get(job)
        if answer is None or answer.attempt != attempt or from_seq < answer.first_seq:
            return []
        return answer.chunks[from_seq - answer.first_seq :]

    def trim(self, *, now_s: float) -> None:
        """Let go what ended long ago; over the bound also the first that ended, then the first that began."""
        while self._ended:
            job, answer = next(iter(self._ended.items()))
            if now_s - answer.ended_s <= self._after_end_s and self.size_bytes <= self._max_bytes:
                break
            self._drop(job)
        while self.size_bytes > self._max_bytes and self._running:
            self._drop(next(iter(self._running)))

    def _drop(self, job: str) -> None:
        answer = self._running.pop(job, None) or self._ended.pop(job, None)
        if answer is not None:
            self.size_bytes -= answer.size_bytes
