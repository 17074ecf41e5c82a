"""Several proposers in order: the first that has a proposal makes the draft. Knows no model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sparkle.drafting.proposer import Proposer


class Combined:
    """A `Proposer` that says which of its parts spoke. Tokens that are forced, and so are sure, come first;
    a copy is free and comes before a model's guess. Without parts it proposes nothing.
    """

    def __init__(self, proposers: Mapping[str, Proposer]) -> None:
        """By their names in metrics, the first one first."""
        self._proposers = proposers
        self._sources: dict[str, str] = {}

    def start(self, request: str, prompt: Sequence[int]) -> None:
        """A request that is not here yet, with its prompt's tokens."""
        for proposer in self._proposers.values():
            proposer.start(request, prompt)

    def add(self, request: str, tokens: Sequence[int]) -> None:
        """More tokens of the request's answer, as they were written."""
        for proposer in self._proposers.values():
            proposer.add(request, tokens)

    def propose(self, request: str, count: int) -> tuple[int, ...]:
        """The first proposal there is, of at most `count` tokens; () for none."""
        for name, proposer in self._proposers.items():
            tokens = proposer.propose(request, count)
            if tokens:
                self._sources[request] = name
                return tokens
        return ()

    def source(self, request: str) -> str:
        """Who made the request's last proposal, of which there must be one."""
        return self._sources[request]

    def end(self, request: str) -> None:
        """Forget the request, which is here."""
        self._sources.pop(request, None)
        for proposer in self._proposers.values():
            proposer.end(request)
