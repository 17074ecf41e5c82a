"""Where along a prompt checkpoints are worth their slots and passes. Knows no torch, no cache and no slot.

A chunk of the prompt ends at each of these, so each costs its request a pass more:
1. Eight blocks before the prompt's end: another question about the same document stands behind it, and the
   same prompt again reads no more than these, which are one short pass.
2. The prompt's end, but for the words that open the answer, where that place would come too early.
3. The end of what an earlier prompt began with too: the third one with it does not read it.
The first two are for prompts that are long enough to gain more than a pass costs, and exclude each other.

Beside these, where a chunk ends anyway: each time the tokens behind a checkpoint have doubled.
"""

from __future__ import annotations

OPENING_TOKENS = 8
"""At most so many open the answer: who answers, and how long it thinks."""
WORTH_BLOCKS = 8
"""Reading fewer again takes about as long as one pass more."""
SHARED_BLOCKS = 2
"""The same where others are known to begin like this."""
FROM_END_BLOCKS = 8


class CheckpointPlaces:
    """Those of one request that begins to read its prompt."""

    def __init__(self, num_tokens: int, *, cached: int, shared: int, block_tokens: int) -> None:
        """Of a prompt of `num_tokens` the first `cached` need not be read; an earlier one had `shared` too.

        `shared` is at a block's end, and at most `num_tokens` - 1.
        """
        self._num_tokens = num_tokens
        self._block_tokens = block_tokens
        self._last = cached
        self._places = set(_by_length(num_tokens, cached, block_tokens))
        before = max((place for place in (cached, *self._places) if place <= shared), default=cached)
        if shared - before >= SHARED_BLOCKS * block_tokens:
            self._places.add(shared)

    @property
    def places(self) -> frozenset[int]:
        """Positions where chunks are to end."""
        return frozenset(self._places)

    def leave_out(self, place: int) -> None:
        """No chunk needs to end here: another request sees to it."""
        self._places.discard(place)

    def next(self, position: int) -> int:
        """The first place behind a position; the prompt's end where there is none."""
        return min((place for place in self._places if place > position), default=self._num_tokens)

    def chunk_end(self, start: int, rows: int) -> int:
        """Where a chunk ends that begins at `start` and may have `rows` rows, at least one."""
        end, nearest = start + rows, self.next(start)
        if nearest <= end or rows < WORTH_BLOCKS * self._block_tokens:
            return min(nearest, end)
        # a checkpoint may stand at a block's end alone
        return end - end % self._block_tokens

    def is_wanted(self, position: int) -> bool:
        """Whether a checkpoint is to be taken here, where a chunk has ended."""
        doubled = (
            position % self._block_tokens == 0
            and position >= 2 * self._last
            and position - self._last >= WORTH_BLOCKS * self._block_tokens
            and position < self._num_tokens
        )
        if position not in self._places and not doubled:
            return False
        self._last = position
        return True


def _by_length(num_tokens: int, cached: int, block_tokens: int) -> list[int]:
    early = -(-num_tokens // block_tokens) - FROM_END_BLOCKS
    end = (num_tokens - OPENING_TOKENS) // block_tokens
    worth = (
        blocks * block_tokens for blocks in (early, end) if blocks - cached // block_tokens >= WORTH_BLOCKS
    )
    return [*worth][:1]
