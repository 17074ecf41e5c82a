"""A draft and who made it. Knows no model."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Draft:
    """A chain of guesses; false where it is empty."""

    tokens: tuple[int, ...] = ()

    sources: tuple[str, ...] = ()
    """Of each token the name of the proposer that guessed it."""

    def __bool__(self) -> bool:
        return bool(self.tokens)

    def first(self, count: int) -> Draft:
        """No more of it than `count` tokens."""
        return Draft(self.tokens[:count], self.sources[:count])
