"""Remembers for a while which blocks of tokens prompts had, by their digests alone. Knows no torch, no clock.

What two prompts begin with, a third may begin with too: that is where a checkpoint is worth a pass more,
and nobody needs to say where a system prompt ends.
"""

from __future__ import annotations

from collections import OrderedDict

from sparkle.engine.blocks import BlockChain

MOST_BLOCKS = 1 << 16
"""Some ten megabytes: sixteen prompts of the greatest length, or thousands of short ones."""


class SeenBlocks:
    """The blocks of the last prompts."""

    def __init__(self, keep_s: float) -> None:
        """Each is remembered for `keep_s` after it was last seen."""
        self._keep_s = keep_s
        # the one seen longest ago is the first
        self._seen_s: OrderedDict[bytes, float] = OrderedDict()

    def __len__(self) -> int:
        """Blocks remembered."""
        return len(self._seen_s)

    def add(self, chain: BlockChain, now_s: float) -> None:
        """A prompt has these blocks."""
        for blocks in range(1, chain.blocks + 1):
            self._seen_s[chain[blocks]] = now_s
            self._seen_s.move_to_end(chain[blocks])
        while len(self._seen_s) > MOST_BLOCKS:
            self._seen_s.popitem(last=False)

    def deepest(self, chain: BlockChain, behind: int) -> int:
        """How many blocks the prompt has in common with one before it; `behind` where not more than that."""
        return next(
            (blocks for blocks in range(chain.blocks, behind, -1) if chain[blocks] in self._seen_s), behind
        )

    def forget_old(self, now_s: float) -> None:
        """Forget what was not seen for long."""
        while self._seen_s and now_s >= next(iter(self._seen_s.values())) + self._keep_s:
            self._seen_s.popitem(last=False)
