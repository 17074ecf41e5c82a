"""Drafts copied from where the same tokens stood before, in the prompt or in the answer. Knows no model.

Prompt lookup (Saxena 2023): the last tokens are looked for earlier in the sequence, and what followed them
there is the draft. Reports that quote their input live from it.
"""

from __future__ import annotations

from collections.abc import Sequence

SHORTEST = 3
"""Tokens that must have stood there before: fewer are met everywhere."""
LONGEST = 8
"""Tokens that are compared: more tell no more."""
CANDIDATES = 32
"""Earlier places that are compared, the latest first: however long the text, a proposal takes no longer."""


class PromptLookup:
    """A `Proposer`. A token added takes constant time, and so does a proposal but for its length."""

    def __init__(self) -> None:
        self._sequences: dict[str, _Sequence] = {}

    def start(self, request: str, prompt: Sequence[int]) -> None:
        """A request that is not here yet, with its prompt's tokens."""
        assert request not in self._sequences
        self._sequences[request] = _Sequence()
        self.add(request, prompt)

    def add(self, request: str, tokens: Sequence[int]) -> None:
        """More tokens of the request's answer, as they were written."""
        sequence = self._sequences[request]
        for token in tokens:
            sequence.append(token)

    def propose(self, request: str, count: int, behind: Sequence[int] = ()) -> tuple[int, ...]:
        """What followed where the longest run of the last tokens stood before, the latest of equal ones.

        Runs have SHORTEST to LONGEST tokens. A copy that comes to the sequence's end goes on with what it
        has copied, as in Lempel-Ziv coding: a repetition is proposed on and on.
        """
        sequence = self._sequences[request]
        for token in behind:
            sequence.append(token)
        copied = sequence.continued(count)
        for _ in behind:
            sequence.pop()
        return copied

    def end(self, request: str) -> None:
        """Forget the request, which is here."""
        del self._sequences[request]


class _Sequence:
    """Tokens, and of each place where the SHORTEST tokens in front of it stood before."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        # by the place behind them; no run ends at place 0, which stands for none
        self._latest: dict[tuple[int, ...], int] = {}
        self._before = [0]

    def append(self, token: int) -> None:
        self.tokens.append(token)
        place = len(self.tokens)
        before = 0
        if place >= SHORTEST:
            run = tuple(self.tokens[-SHORTEST:])
            before = self._latest.get(run, 0)
            self._latest[run] = place
        self._before.append(before)

    def pop(self) -> None:
        """The last token was not appended."""
        run, before = tuple(self.tokens[-SHORTEST:]), self._before.pop()
        self.tokens.pop()
        if before:
            self._latest[run] = before
        else:
            self._latest.pop(run, None)

    def continued(self, count: int) -> tuple[int, ...]:
        """A copy of `count` tokens, or none."""
        start = self._followed()
        if start is None:
            return ()
        period = len(self.tokens) - start
        return tuple(self.tokens[start + place % period] for place in range(count))

    def _followed(self) -> int | None:
        """The place behind the earlier run that the last tokens repeat."""
        best, longest = None, 0
        place = self._before[-1]
        for _ in range(CANDIDATES):
            if place == 0 or longest == LONGEST:
                break
            length = self._repeated(place)
            if length > longest:
                best, longest = place, length
            place = self._before[place]
        return best

    def _repeated(self, place: int) -> int:
        """How many tokens before `place` are the sequence's last ones, up to LONGEST."""
        length, most = SHORTEST, min(LONGEST, place)
        while length < most and self.tokens[place - length - 1] == self.tokens[-length - 1]:
            length += 1
        return length
