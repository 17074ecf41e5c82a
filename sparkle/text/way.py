"""A way on from where an answer stands in its grammar: tokens, and what may follow them. Knows no search."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from sparkle.text.matcher import Matcher

Move = tuple[int, ...]


@dataclass(slots=True)
class Budget:
    """How many places a search may still look at: a mask is made of each."""

    places: int


@dataclass(frozen=True, slots=True)
class Way:
    """Some tokens behind the answer, where they lead, what may follow them as `Matcher.allowed` has it."""

    state: Matcher
    budget: Budget
    mask: bytes
    tokens: Move = ()
    filled: int = field(default=0)
    """Moves since the last one that was not within a text of which nearly all is allowed."""

    @classmethod
    def from_here(cls, state: Matcher, budget: Budget) -> Way:
        """No tokens yet."""
        return cls(state, budget, state.allowed())

    def behind(self, move: Move, *, filled: int = 0) -> Way:
        """This way and a move that is allowed."""
        self.budget.places -= 1
        state = self.state.copy()
        state.accept(move)
        return Way(state, self.budget, state.allowed(), (*self.tokens, *move), filled)

    @property
    def breadth(self) -> int:
        """How much may follow: bytes of the mask that are not zero, quicker to count than bits."""
        return len(self.mask) - self.mask.count(0)

    def allows(self, token: int) -> bool:
        return bool(self.mask[token // 8] >> token % 8 & 1)

    def following(self, moves: Iterable[Move]) -> Iterator[Move]:
        """Those of the moves that are allowed."""
        for move in moves:
            if self.allows(move[0]) and (len(move) == 1 or self.state.count_allowed(move) == len(move)):
                yield move

    def every_token(self) -> Iterator[Move]:
        """Each token that may follow, lowest first."""
        for place, octet in enumerate(self.mask):
            yield from ((8 * place + bit,) for bit in range(8) if octet >> bit & 1)
