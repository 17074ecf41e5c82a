"""What every source of drafts offers. Knows neither model nor scheduler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Proposer(Protocol):
    """Guesses what may follow each of several requests' tokens.

    A guess is a function of the request's tokens alone, so that the same job drafts the same way each time;
    but there may be none yet, where there are many tokens to see to first.
    """

    def start(self, request: str, prompt: Sequence[int]) -> None:
        """A request that is not here yet, with its prompt's tokens."""
        ...

    def add(self, request: str, tokens: Sequence[int]) -> None:
        """More tokens of the request's answer, as they were written."""
        ...

    def propose(self, request: str, count: int, behind: Sequence[int] = ()) -> tuple[int, ...]:
        """At most `count` tokens, one after another, that may follow; () for none. `count` is at least 1.

        `behind`: guesses that are taken to follow the request's tokens; the proposal goes on behind them.
        """
        ...

    def end(self, request: str) -> None:
        """Forget the request, which is here."""
        ...
