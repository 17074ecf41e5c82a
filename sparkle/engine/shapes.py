"""The answers that are kept to a shape, by request; what of drafts they allow. Knows no torch, no logits."""

from __future__ import annotations

from collections.abc import Sequence

from sparkle.engine.shaped_answer import FindEnding, ShapedAnswer
from sparkle.errors import GrammarError
from sparkle.text.shape import Shape


class Shapes:
    """Owns their states. One whose state is lost drafts nothing: that it is lost is told by `accept`."""

    def __init__(self, *, rows: int, end_tokens: Sequence[int], find_ending: FindEnding) -> None:
        """`rows` and `end_tokens`: of the vocabulary that grammars are compiled for."""
        self._rows = rows
        self._end_tokens = tuple(end_tokens)
        self._find_ending = find_ending
        self._answers: dict[str, ShapedAnswer] = {}

    def start(self, request: str, shape: Shape, *, max_tokens: int) -> ShapedAnswer:
        """A request that is not here yet, whose answer has at most so many tokens.

        Raises MatcherFailed or GrammarTooComplex where the grammar cannot be used.
        """
        assert request not in self._answers
        answer = self._answers[request] = ShapedAnswer(
            shape,
            rows=self._rows,
            end_tokens=self._end_tokens,
            max_tokens=max_tokens,
            find_ending=self._find_ending,
        )
        return answer

    def accept(self, request: str, tokens: Sequence[int]) -> None:
        """The request's answer got these tokens, or had them before it came here.

        Raises MatcherFailed or GrammarTooComplex where its state is lost: it cannot go on.
        """
        answer = self._answers.get(request)
        if answer is not None:
            answer.accept(tokens)

    def is_complete(self, request: str) -> bool:
        """Whether the request's answer has a shape, is valid as it is and was ended by an end token."""
        answer = self._answers.get(request)
        return answer is not None and answer.ended

    def end(self, request: str) -> None:
        """Forget the request, whether it is here or not."""
        self._answers.pop(request, None)

    def forced(self, request: str, count: int) -> Sequence[int]:
        """A `drafting.forced.ForcedRun`."""
        answer = self._answers.get(request)
        if answer is None or answer.failed:
            return ()
        try:
            return answer.forced()[:count]
        except GrammarError:
            return ()

    def count_allowed(self, request: str, draft: Sequence[int]) -> int:
        """How many of a draft's tokens may follow the request's; all where it is kept to no shape."""
        answer = self._answers.get(request)
        # asked of every answer in front of every pass, and where the draft model guesses there is none yet
        if answer is None or not draft:
            return len(draft)
        if answer.failed:
            return 0
        try:
            return answer.count_allowed(draft)
        except GrammarError:
            return 0
