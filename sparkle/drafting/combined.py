"""Several proposers in order, one going on where the one before it ends. Knows no model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sparkle.drafting.draft import Draft
from sparkle.drafting.proposer import Proposer


class Combined:
    """Asks its parts in order: tokens that are forced, and so are sure, come first, and a copy of what stood
    before goes on behind them. Without parts it proposes nothing.
    """

    def __init__(self, proposers: Mapping[str, Proposer]) -> None:
        """By their names in metrics, the first one first."""
        self._proposers = proposers

    def start(self, request: str, prompt: Sequence[int]) -> None:
        """A request that is not here yet, with its prompt's tokens."""
        for proposer in self._proposers.values():
            proposer.start(request, prompt)

    def add(self, request: str, tokens: Sequence[int]) -> None:
        """More tokens of the request's answer, as they were written."""
        for proposer in self._proposers.values():
            proposer.add(request, tokens)

    def propose(self, request: str, count: int) -> Draft:
        """A draft of at most `count` tokens."""
        tokens, sources = list[int](), list[str]()
        for name, proposer in self._proposers.items():
            if len(tokens) < count:
                tokens += proposer.propose(request, count - len(tokens), tokens)
                sources += [name] * (len(tokens) - len(sources))
        return Draft(tuple(tokens), tuple(sources))

    def end(self, request: str) -> None:
        """Forget the request, which is here."""
        for proposer in self._proposers.values():
            proposer.end(request)
