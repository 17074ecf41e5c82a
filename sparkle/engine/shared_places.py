"""Who takes which checkpoint while prompts are read: of those that begin alike the first, for all of them.

Knows no torch, no slot and no page; the time is given to it.
"""

from __future__ import annotations

from sparkle.engine.blocks import BlockChain, Prefix
from sparkle.engine.checkpoint_places import CheckpointPlaces
from sparkle.engine.request import Request
from sparkle.engine.seen_blocks import SeenBlocks


class SharedPlaces:
    """Remembers which blocks prompts had, and who is going to take a checkpoint behind them."""

    def __init__(self, *, block_tokens: int, keep_s: float) -> None:
        """Blocks are remembered for `keep_s` after they were last seen."""
        self._block_tokens = block_tokens
        self._seen = SeenBlocks(keep_s)
        self._promised: dict[Prefix, Request] = {}

    def plan(self, request: Request, chain: BlockChain, now_s: float) -> None:
        """Set the places of a request that begins to read; `chain` has the names of its tokens' blocks."""
        size, tokens = self._block_tokens, request.tokens
        last = (len(tokens) - 1) // size
        shared = min(self._seen.deepest(chain, request.computed // size), last)
        self._seen.add(chain, now_s)
        places = CheckpointPlaces(
            len(tokens), cached=request.computed, shared=shared * size, block_tokens=size
        )
        for place in places.places:
            prefix = chain.prefix(tokens, place)
            if prefix in self._promised:
                places.leave_out(place)
            else:
                self._promised[prefix] = request
        request.places = places

    def end(self, request: Request) -> None:
        """It takes no checkpoint any more, whether it was to take one or not."""
        request.places = None
        self._promised = {prefix: one for prefix, one in self._promised.items() if one is not request}

    def forget_old(self, now_s: float) -> None:
        """Forget what was not seen for long."""
        self._seen.forget_old(now_s)
