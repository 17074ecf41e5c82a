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
ENTERED_AT_ONCE = 4_096
"""Tokens that a proposal enters at most: other answers wait meanwhile. Until all are there, none is made."""
_TOKEN_BITS = 21
"""Of a token's number in a run's: more than any vocabulary has."""
_RUN = (1 << SHORTEST * _TOKEN_BITS) - 1


class PromptLookup:
    """A `Proposer`. Proposals enter what was added before them, and each takes bounded time."""

    def __init__(self) -> None:
        self._sequences: dict[str, _Sequence] = {}

    def start(self, request: str, prompt: Sequence[int]) -> None:
        """A request that is not here yet, with its prompt's tokens."""
        assert request not in self._sequences
        self._sequences[request] = _Sequence()
        self.add(request, prompt)

    def add(self, request: str, tokens: Sequence[int]) -> None:
        """More tokens of the request's answer, as they were written."""
        self._sequences[request].extend(tokens)

    def propose(self, request: str, count: int, behind: Sequence[int] = ()) -> tuple[int, ...]:
        """What followed where the longest run of the last tokens stood before, the latest of equal ones.

        Runs have SHORTEST to LONGEST tokens. A copy that comes to the sequence's end goes on with what it
        has copied, as in Lempel-Ziv coding: a repetition is proposed on and on.
        """
        sequence = self._sequences[request]
        if not sequence.enter(ENTERED_AT_ONCE):
            return ()
        sequence.extend(behind)
        sequence.enter(len(behind))
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
        # of a run, as one number, the place behind it; no run ends at place 0, which stands for none
        self._latest: dict[int, int] = {}
        self._before = [0]

    def extend(self, tokens: Sequence[int]) -> None:
        """More tokens, which may be a long prompt's; they are still to be entered."""
        self.tokens += tokens

    def enter(self, most: int) -> bool:
        """Find the runs of so many more tokens; whether those of all are found then."""
        latest, before = self._latest, self._before
        start = len(before) - 1
        run = self._run(start)
        for place, token in enumerate(self.tokens[start : start + most], start + 1):
            run = (run << _TOKEN_BITS | token) & _RUN
            if place < SHORTEST:
                before.append(0)
            else:
                before.append(latest.get(run, 0))
                latest[run] = place
        return len(before) > len(self.tokens)

    def pop(self) -> None:
        """The last token was not appended."""
        run, before = self._run(len(self.tokens)), self._before.pop()
        self.tokens.pop()
        if before:
            self._latest[run] = before
        else:
            self._latest.pop(run, None)

    def _run(self, place: int) -> int:
        """The tokens in front of a place as one number."""
        run = 0
        for token in self.tokens[max(0, place - SHORTEST) : place]:
            run = run << _TOKEN_BITS | token
        return run

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
