"""Drafts of tokens that need no guess: what alone may follow. Knows no grammar and no model."""

from __future__ import annotations

from collections.abc import Callable, Sequence

ForcedRun = Callable[[str, int], Sequence[int]]
"""(request, count) -> at most so many tokens, each the only one that may follow those in front of it; none
where there is a choice. Whoever binds answers to grammars gives it, and sees the answers."""


class Forced:
    """A `Proposer` of runs that a grammar leaves no choice in."""

    def __init__(self, run: ForcedRun) -> None:
        self._run = run

    def start(self, request: str, prompt: Sequence[int]) -> None:
        """Nothing: where the request stands is known to who gives the runs."""

    def add(self, request: str, tokens: Sequence[int]) -> None:
        """Nothing, as `start`."""

    def propose(self, request: str, count: int, behind: Sequence[int] = ()) -> tuple[int, ...]:
        """The run behind the request's tokens; none behind guesses, which the grammar has not seen."""
        return () if behind else tuple(self._run(request, count))

    def end(self, request: str) -> None:
        """Nothing, as `start`."""
