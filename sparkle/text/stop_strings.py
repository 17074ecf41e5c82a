"""Finds stop strings in a text that comes in pieces. Knows no tokens and no channels.

An Aho-Corasick automaton over characters: its state is the longest end of the text that some stop string
starts with. That end is exactly what must be held back, for a stop string may still come of it, and no more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence


class StopStrings:
    """Cuts one text at the first stop string to be complete; of several complete at once, the longest counts.

    What comes out does not depend on how the text was cut into pieces.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        """`stops`: texts of at least one character."""
        self._next: list[dict[str, int]] = [{}]
        self._depth = [0]
        # length of the longest stop string that a state's text ends with, 0 for none
        self._match = [0]
        for stop in stops:
            self._add(stop)
        self._fallback = self._link()
        self._state = 0
        self._held = ""

    def push(self, text: str) -> tuple[str, bool]:
        """The text that is now final, and whether a stop string ended it; then nothing may be pushed."""
        if len(self._next) == 1:
            return text, False
        pending = self._held + text
        for place, character in enumerate(text, start=len(self._held) + 1):
            self._state = self._step(self._state, character)
            if self._match[self._state]:
                self._held = ""
                return pending[: place - self._match[self._state]], True
        final = len(pending) - self._depth[self._state]
        self._held = pending[final:]
        return pending[:final], False

    def finish(self) -> str:
        """What was held back: the text ended without its stop string."""
        held, self._held, self._state = self._held, "", 0
        return held

    def _add(self, stop: str) -> None:
        state = 0
        for character in stop:
            if character not in self._next[state]:
                self._next[state][character] = len(self._next)
                self._next.append({})
                self._depth.append(self._depth[state] + 1)
                self._match.append(0)
            state = self._next[state][character]
        self._match[state] = len(stop)

    def _link(self) -> list[int]:
        """For each state the longest shorter one that its text ends with, nearest to the root first."""
        self._fallback = [0] * len(self._next)
        waiting = deque(self._next[0].values())
        while waiting:
            state = waiting.popleft()
            for character, child in self._next[state].items():
                self._fallback[child] = self._step(self._fallback[state], character)
                self._match[child] = self._match[child] or self._match[self._fallback[child]]
                waiting.append(child)
        return self._fallback

    def _step(self, state: int, character: str) -> int:
        while state and character not in self._next[state]:
            state = self._fallback[state]
        return self._next[state].get(character, 0)
