"""KV pages: which are free. Knows no torch and not who holds the others."""

from __future__ import annotations

from collections.abc import Sequence


class PagePool:
    """Hands out pages 0 to num_pages - 1; each is free or held once."""

    def __init__(self, num_pages: int, page_tokens: int) -> None:
        self.num_pages = num_pages
        self.page_tokens = page_tokens
        # taken from the end: the pages given back last are the warmest
        self._free = list(range(num_pages - 1, -1, -1))

    @property
    def num_free(self) -> int:
        """Pages that can be taken."""
        return len(self._free)

    @property
    def free(self) -> frozenset[int]:
        """The free pages, for checks."""
        return frozenset(self._free)

    def pages_for(self, tokens: int) -> int:
        """Pages that hold this many tokens."""
        return -(-tokens // self.page_tokens)

    def take(self, count: int) -> tuple[int, ...] | None:
        """`count` pages, or None and no change where fewer are free."""
        if count > len(self._free):
            return None
        return tuple(self._free.pop() for _ in range(count))

    def give_back(self, pages: Sequence[int]) -> None:
        """Pages taken before are free again."""
        self._free.extend(reversed(pages))
