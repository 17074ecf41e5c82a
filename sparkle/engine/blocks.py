"""Names what stands in front of a position: chained digests of blocks of tokens. Knows no page and no slot.

A block's digest covers all tokens in front of it too, and the tenant is the chain's first link: what two
tenants have has two names, whatever its tokens. No tenant is one of its own.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True)
class Prefix:
    """All tokens of a sequence in front of a position."""

    position: int
    """How many they are."""

    blocks: bytes
    """The digest of the last whole block."""

    rest: bytes
    """The digest of the tokens behind that block; empty for none."""


class BlockChain:
    """The digests of one sequence's whole blocks."""

    def __init__(self, tenant: str | None, block_tokens: int) -> None:
        """Of no tokens yet."""
        self._block_tokens = block_tokens
        owner = b"" if tenant is None else b"tenant " + tenant.encode()
        self._digests = [_digest(owner)]

    @property
    def blocks(self) -> int:
        """Whole blocks that have a digest."""
        return len(self._digests) - 1

    def __getitem__(self, blocks: int) -> bytes:
        """The digest of the first `blocks` whole blocks, 0 for none."""
        return self._digests[blocks]

    def extend(self, tokens: Sequence[int]) -> None:
        """`tokens` are the whole sequence, which begins with the blocks that are here."""
        size = self._block_tokens
        numbers = _bytes(tokens[self.blocks * size : len(tokens) // size * size])
        last = self._digests[-1]
        for start in range(0, len(numbers), 4 * size):
            last = _digest(numbers[start : start + 4 * size], last)
            self._digests.append(last)

    def prefix(self, tokens: Sequence[int], position: int) -> Prefix:
        """The name of the first `position` of these tokens, whose whole blocks are here."""
        blocks, behind = divmod(position, self._block_tokens)
        rest = _digest(_bytes(tokens[position - behind : position])) if behind else b""
        return Prefix(position, self._digests[blocks], rest)


def _bytes(tokens: Sequence[int]) -> memoryview:
    return memoryview(array("I", tokens)).cast("B")


def _digest(content: bytes | memoryview, before: bytes = b"") -> bytes:
    return blake2b(content, digest_size=DIGEST_BYTES, key=before).digest()
