"""What came of one answer's drafts, by who made them. Knows no tokens."""

from __future__ import annotations


class DraftCount:
    """Passes with a draft, tokens drafted, and of these the ones that became part of the answer."""

    def __init__(self) -> None:
        self._counts: dict[str, list[int]] = {}
        self._source = ""

    def checked(self, source: str, tokens: int) -> None:
        """A pass checks a draft of `tokens` tokens by `source`."""
        count = self._counts.setdefault(source, [0, 0, 0])
        count[0] += 1
        count[1] += tokens
        self._source = source

    def accepted_one(self) -> None:
        """One more token of the last draft is part of the answer."""
        self._counts[self._source][2] += 1

    def by_source(self) -> dict[str, list[int]]:
        """Passes, drafted tokens, accepted tokens."""
        return {source: list(count) for source, count in self._counts.items()}
