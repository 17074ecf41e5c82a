"""Deltas of one job in, fewer and larger ones out, none held longer than a window. Knows no clock.

A delta leaves at once if the window since the last one sent is over, so the first token never waits and a
slow answer is sent token by token; else it waits for the window's end together with all that come until then.
"""

from __future__ import annotations

import dataclasses

from sparkle.engine.call_pieces import joined
from sparkle.engine.frames import Delta


class Coalescer:
    """Merges the deltas of one job; every time given to it is in seconds of one monotonic clock."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._held: Delta | None = None
        self._opens_s: float | None = None

    @property
    def due_s(self) -> float | None:
        """When what is held must be sent; None if nothing is held."""
        return self._opens_s if self._held is not None else None

    def add(self, delta: Delta, now_s: float) -> list[Delta]:
        """Take one more delta; what is returned is to be sent now, in order."""
        ready: list[Delta] = []
        if self._held is not None and not _continues(self._held, delta):
            ready += self.flush(now_s)
        self._held = delta if self._held is None else _merged(self._held, delta)
        return ready + self.take_due(now_s)

    def take_due(self, now_s: float) -> list[Delta]:
        """What is held, if its time has come."""
        if self._opens_s is not None and now_s < self._opens_s:
            return []
        return self.flush(now_s)

    def flush(self, now_s: float) -> list[Delta]:
        """What is held, whether or not its time has come."""
        if self._held is None:
            return []
        ready, self._held = [self._held], None
        self._opens_s = now_s + self._window_s
        return ready


def _continues(held: Delta, delta: Delta) -> bool:
    """Whether the two can be one chunk: same text, next token and character, both with log probabilities."""
    return (
        held.channel is delta.channel
        and held.first_index + len(held.tokens) == delta.first_index
        and held.text_start + len(held.text) == delta.text_start
        and (held.logprobs is None) == (delta.logprobs is None)
    )


def _merged(held: Delta, delta: Delta) -> Delta:
    both = None if held.logprobs is None or delta.logprobs is None else held.logprobs + delta.logprobs
    return dataclasses.replace(
        held,
        tokens=held.tokens + delta.tokens,
        text=held.text + delta.text,
        logprobs=both,
        calls=joined([*held.calls, *delta.calls]),
    )
