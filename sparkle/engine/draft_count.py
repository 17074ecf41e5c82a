"""What came of one answer's drafts, by who made them. Knows no tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence


class DraftCount:
    """Passes with a draft, tokens drafted, and of these the ones that became part of the answer."""

    def __init__(self) -> None:
        self._counts: dict[str, list[int]] = {}
        self._sources: Iterator[str] = iter(())

    def checked(self, sources: Sequence[str]) -> None:
        """A pass checks a draft; `sources`: of each token of it who guessed it."""
        for source, tokens in Counter(sources).items():
            count = self._counts.setdefault(source, [0, 0, 0])
            count[0] += 1
            count[1] += tokens
        self._sources = iter(sources)

    def accepted_one(self) -> None:
        """The next token of the last draft is part of the answer."""
        self._counts[next(self._sources)][2] += 1

    def by_source(self) -> dict[str, list[int]]:
        """Passes, drafted tokens, accepted tokens."""
        return {source: list(count) for source, count in self._counts.items()}
