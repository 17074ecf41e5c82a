"""The prefix cache: states of sequences that a later request may go on from. Knows no torch, pool or clock.

A checkpoint is a slot with the state behind some tokens, and the pages with their keys and values. Every
lookup is by digests that begin with the tenant, so none finds another's.

Which one leaves first: one of the tenant that holds the most, so that a flood takes nobody else's. Of these
the one whose rank is lowest. A rank is the tokens that would have to be read again, on top of the highest
rank that left. So among equals the least recently used leaves first, and a document outlives many questions
that need the same slot, but not for ever.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from sparkle.engine.blocks import BlockChain, Prefix

MOST_CONVERSATIONS = 64
"""Of more that made the same, those longest ago no longer hold a checkpoint."""


@dataclass(slots=True, kw_only=True, eq=False)
class Checkpoint:
    """The state behind `prefix`."""

    prefix: Prefix
    slot: int
    pages: tuple[int, ...]
    """All of its pages in order; where the position is inside the last one, that page is its alone."""

    conversations: list[str | None]
    """Whose requests made it, the last one at the end: None for a request of no conversation."""

    tenant: str | None = None
    used_s: float = 0.0
    """When it was made or last gone on from."""

    rank: tuple[int, int] = (0, 0)
    """Set by Checkpoints."""

    @property
    def position(self) -> int:
        """Tokens that need not be read again."""
        return self.prefix.position

    def made_again(self, conversation: str | None) -> None:
        """A request of this conversation has come to the same tokens."""
        if conversation in self.conversations:
            self.conversations.remove(conversation)
        self.conversations.append(conversation)
        del self.conversations[:-MOST_CONVERSATIONS]


class Checkpoints:
    """Those that are held now."""

    def __init__(self, keep_s: float) -> None:
        """Each is held for `keep_s` since it was last used."""
        self._keep_s = keep_s
        # by the digest of the whole blocks, then of the tokens behind them
        self._found: dict[bytes, dict[bytes, Checkpoint]] = {}
        self._left_rank = 0
        self._uses = 0

    @property
    def all(self) -> list[Checkpoint]:
        """In no order."""
        return [one for behind in self._found.values() for one in behind.values()]

    @property
    def next_expiry_s(self) -> float:
        """When the first of them is to go; infinite where there is none."""
        return min((one.used_s + self._keep_s for one in self.all), default=math.inf)

    def get(self, prefix: Prefix) -> Checkpoint | None:
        """The one behind just these tokens."""
        return self._found.get(prefix.blocks, {}).get(prefix.rest)

    def deepest(self, chain: BlockChain, tokens: Sequence[int], most: int) -> Checkpoint | None:
        """The one behind the most of these tokens, at most `most`; `chain` has their whole blocks."""
        for blocks in range(chain.blocks, -1, -1):
            behind = self._found.get(chain[blocks])
            if behind is None:
                continue
            fitting = [
                one
                for one in behind.values()
                if one.position <= most and one.prefix == chain.prefix(tokens, one.position)
            ]
            if fitting:
                return max(fitting, key=_position)
        return None

    def add(self, checkpoint: Checkpoint, now_s: float) -> None:
        """A new one, of tokens that none is behind yet."""
        assert self.get(checkpoint.prefix) is None, "there is one already"
        self._found.setdefault(checkpoint.prefix.blocks, {})[checkpoint.prefix.rest] = checkpoint
        self.use(checkpoint, now_s)

    def use(self, checkpoint: Checkpoint, now_s: float) -> None:
        """It is as good as new."""
        checkpoint.used_s = now_s
        self._uses += 1
        checkpoint.rank = self._left_rank + checkpoint.position, self._uses

    def remove(self, checkpoint: Checkpoint) -> None:
        """Forget it; slot and pages are the caller's."""
        behind = self._found[checkpoint.prefix.blocks]
        del behind[checkpoint.prefix.rest]
        if not behind:
            del self._found[checkpoint.prefix.blocks]

    def first_to_leave(self, tenant: str | None, spared: Collection[Checkpoint]) -> Checkpoint | None:
        """The next to be removed, for one of this tenant's; none of those that are spared. None for none."""
        left = self._first_to_leave(self._held_with(tenant), spared)
        if left is not None:
            self._left_rank = max(self._left_rank, left.rank[0])
        return left

    def is_worth_more(self, position: int, tenant: str | None, spared: Collection[Checkpoint]) -> bool:
        """Whether a new one of so many tokens would leave later than the one that leaves for it."""
        held = self._held_with(tenant)
        left = self._first_to_leave(held, spared)
        rank = self._left_rank + position, self._uses + 1
        return left is not None and _order(held, left.tenant, left.rank) < _order(held, tenant, rank)

    def _held_with(self, tenant: str | None) -> Counter[str | None]:
        """How many each tenant holds, with one more of this tenant's."""
        return Counter([tenant, *(one.tenant for one in self.all)])

    def _first_to_leave(self, held: Counter[str | None], spared: Collection[Checkpoint]) -> Checkpoint | None:
        ones = (one for one in self.all if one not in spared)
        return min(ones, key=lambda one: _order(held, one.tenant, one.rank), default=None)

    def expired(self, now_s: float) -> list[Checkpoint]:
        """Those that are to go."""
        return [one for one in self.all if now_s >= one.used_s + self._keep_s]

    def end_conversation(self, tenant: str | None, conversation: str) -> list[Checkpoint]:
        """Those to go with a conversation: no other made the same."""
        ended: list[Checkpoint] = []
        for one in self.all:
            if one.tenant == tenant and conversation in one.conversations:
                one.conversations.remove(conversation)
                if not one.conversations:
                    ended.append(one)
        return ended


def _position(checkpoint: Checkpoint) -> int:
    return checkpoint.position


def _order(held: Counter[str | None], tenant: str | None, rank: tuple[int, int]) -> tuple[int, int, int]:
    """Who is lower leaves earlier."""
    return -held[tenant], *rank
