"""KV pages: which are free, and how often the others are in use. Knows no torch and not who uses them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence


class PagePool:
    """Pages 0 to num_pages - 1: each is free, or held by requests and kept by checkpoints, so often each.

    Those that no request holds can be made free.
    """

    def __init__(self, num_pages: int, page_tokens: int) -> None:
        self.num_pages = num_pages
        self.page_tokens = page_tokens
        # taken from the end: the pages given back last are the warmest
        self._free = list(range(num_pages - 1, -1, -1))
        self._held: Counter[int] = Counter()
        self._kept: Counter[int] = Counter()
        self._unwiped: set[int] = set()

    @property
    def num_free(self) -> int:
        """Pages that can be taken."""
        return len(self._free)

    @property
    def num_obtainable(self) -> int:
        """Pages that no request holds: free, or free once their checkpoints are gone."""
        return self.num_pages - len(self._held)

    def num_held(self, pages: Iterable[int]) -> int:
        """How many of these a request holds."""
        return sum(page in self._held for page in pages)

    def holders(self, page: int) -> int:
        """How many requests hold this one."""
        return self._held[page]

    @property
    def free(self) -> frozenset[int]:
        """The free pages, for checks."""
        return frozenset(self._free)

    @property
    def uses(self) -> tuple[Counter[int], Counter[int]]:
        """How often each page is held and how often kept, for checks."""
        return Counter(self._held), Counter(self._kept)

    @property
    def unwiped(self) -> frozenset[int]:
        """Pages that became free since the last `take_unwiped`, whoever has them now."""
        return frozenset(self._unwiped)

    def pages_for(self, tokens: int) -> int:
        """Pages that hold this many tokens."""
        return -(-tokens // self.page_tokens)

    def take(self, count: int) -> tuple[int, ...] | None:
        """`count` pages, each held once, or None and no change where fewer are free."""
        if count > len(self._free):
            return None
        taken = tuple(self._free.pop() for _ in range(count))
        self._held.update(taken)
        return taken

    def hold(self, pages: Iterable[int]) -> None:
        """Pages in use are held once more."""
        self._held.update(pages)

    def give_back(self, pages: Sequence[int]) -> None:
        """Held once less, and free where that was the last use."""
        self._less(self._held, self._kept, pages)

    def keep(self, pages: Iterable[int]) -> None:
        """Pages in use are kept once more."""
        self._kept.update(pages)

    def drop(self, pages: Sequence[int]) -> None:
        """Kept once less, and free where that was the last use."""
        self._less(self._kept, self._held, pages)

    def take_unwiped(self) -> tuple[int, ...]:
        """`unwiped` in order: their content is to be wiped now."""
        unwiped, self._unwiped = tuple(sorted(self._unwiped)), set()
        return unwiped

    def _less(self, uses: Counter[int], others: Counter[int], pages: Sequence[int]) -> None:
        for page in reversed(pages):
            uses[page] -= 1
            if not uses[page]:
                del uses[page]
                if page not in others:
                    self._free.append(page)
                    self._unwiped.add(page)
