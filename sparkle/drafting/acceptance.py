"""How often guesses were right, by who made them and by their place in the draft. Knows no model, no tokens.

The chance of a guess is that it is right where all in front of it are. It is estimated of each request, older
tries counting less and less, and leans on what this worker has seen of the same proposer in all requests: a
request that has not drafted yet is expected to do as the others do.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, groupby
from operator import mul

REQUEST_MEMORY = 16
"""Tries of one request's place that count, about: what it writes changes soon."""
WORKER_MEMORY = 512
"""The same of all requests."""
LEAN = 2.0
"""Tries of its own that weigh as much as what was seen of others."""
FIRST_CHANCE = 0.8
"""Of the first guess of a proposer that was never tried: high enough to be tried."""


class Acceptance:
    """Estimates of one worker, for drafts of at most `draft_tokens` tokens."""

    def __init__(self, draft_tokens: int) -> None:
        self._draft_tokens = draft_tokens
        self._all: dict[str, _Tries] = {}
        self._requests: dict[str, dict[str, _Tries]] = {}

    def chances(self, request: str, sources: Sequence[str]) -> list[float]:
        """Of each token of a draft, by who guessed it, the chance that it and all before it are right."""
        own = self._requests.get(request, {})
        alone = list[float]()
        for source, run in groupby(sources):
            expected = self._of_all(source).expected[: len(list(run))]
            alone += own[source].leaning_on(expected) if source in own else expected
        return list(accumulate(alone, mul))

    def checked(self, request: str, sources: Sequence[str], right: int, *, tried: int) -> None:
        """Of the request's draft the first `right` guesses were right; the first `tried` were compared.

        The others stood behind a wrong guess, or behind the answer's end.
        """
        assert right <= tried <= len(sources)
        own = self._requests.setdefault(request, {})
        for index, (source, place) in enumerate(_places(sources[:tried])):
            tries = own.setdefault(source, _Tries(self._draft_tokens, REQUEST_MEMORY))
            self._of_all(source).add(place, right=index < right)
            tries.add(place, right=index < right)

    def end(self, request: str) -> None:
        """Forget the request, known or not; what it showed of its proposers stays."""
        self._requests.pop(request, None)

    def _of_all(self, source: str) -> _Tries:
        return self._all.setdefault(source, _Tries(self._draft_tokens, WORKER_MEMORY))


class _Tries:
    """Of each place in a draft: tries, and of these the right ones, older ones counting less."""

    def __init__(self, places: int, memory: int) -> None:
        self._keep = 1 - 1 / memory
        self._tried = [0.0] * places
        self._right = [0.0] * places
        self._expected: list[float] = []

    def add(self, place: int, *, right: bool) -> None:
        self._tried[place] = self._tried[place] * self._keep + 1
        self._right[place] = self._right[place] * self._keep + right
        self._expected = []

    @property
    def expected(self) -> list[float]:
        """Of each place the chance of a guess there; one that was seldom tried is like the one in front."""
        if not self._expected:
            chance = FIRST_CHANCE
            for right, tried in zip(self._right, self._tried, strict=True):
                chance = _chance(right, tried, chance)
                self._expected.append(chance)
        return self._expected

    def leaning_on(self, expected: Sequence[float]) -> list[float]:
        """The chances at the first places, which were `expected` had they never been tried."""
        seen = zip(self._right, self._tried, expected, strict=False)
        return [_chance(right, tried, one) for right, tried, one in seen]


def _chance(right: float, tried: float, expected: float) -> float:
    return (right + LEAN * expected) / (tried + LEAN)


def _places(sources: Sequence[str]) -> list[tuple[str, int]]:
    """Of each token who guessed it, and how many of the same proposer's stand right in front of it."""
    return [(source, place) for source, run in groupby(sources) for place, _ in enumerate(run)]
