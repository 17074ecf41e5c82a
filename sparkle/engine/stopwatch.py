"""How long each phase of a start took. Knows no phase."""

from __future__ import annotations

import time


class Stopwatch:
    """Seconds by phase, one phase after another."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._last_s = time.monotonic()

    def lap(self, name: str) -> None:
        """The phase `name` ends now, and the next one begins."""
        now_s = time.monotonic()
        self.laps[name] = round(now_s - self._last_s, 3)
        self._last_s = now_s
