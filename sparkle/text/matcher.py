"""Where one answer stands in its grammar: what may follow, what must, whether it may end. Knows no model.

The library never raises: it goes into an error state in which a mask allows the end alone, so that a broken
answer would look complete. Every call here asks for that state, and raises MatcherFailed, or
GrammarTooComplex where it is the library's own limits that were met.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from itertools import takewhile

from llguidance import LLMatcher

from sparkle.errors import GrammarTooComplex, MatcherFailed
from sparkle.text.over_limit import is_over_limit

NEWEST_TOKENS = 1_024
"""A number that goes on for longer is not brought to an end."""


class Matcher:
    """The state of one answer. One thread at a time may use it; others are free meanwhile."""

    def __init__(self, compiled: LLMatcher, *, rows: int, end_tokens: Collection[int]) -> None:
        """`compiled`, at its beginning, is copied; `rows` and `end_tokens` are its vocabulary's."""
        self._state = compiled.deep_copy()
        # tokens that the state has gone on by and the answer has not
        self._ahead: list[int] = []
        self._newest = deque[int](maxlen=NEWEST_TOKENS)
        self._rows = rows
        self._end_tokens = frozenset(end_tokens)
        self._ended = False
        self._refused = False
        self._require_state()

    def copy(self) -> Matcher:
        """Another answer's state at the same place, which goes its own way from here."""
        other = Matcher(self._here, rows=self._rows, end_tokens=self._end_tokens)
        other._ended = self._ended
        other._newest = self._newest.copy()
        return other

    @property
    def ended(self) -> bool:
        """Whether an end token was accepted."""
        return self._ended

    @property
    def newest(self) -> Sequence[int]:
        """The last NEWEST_TOKENS that were accepted, as far as there are so many; no end token."""
        return self._newest

    @property
    def failed(self) -> bool:
        """Whether the state is lost; every other call raises MatcherFailed then."""
        return self._refused or self._state.is_error()

    def may_end(self) -> bool:
        """Whether what was accepted is valid as it is."""
        accepting = self._here.is_accepting()
        self._require_state()
        return accepting

    def must_end(self) -> bool:
        """Whether nothing but an end token may follow."""
        stopped = self._here.is_stopped()
        self._require_state()
        return stopped

    def accept(self, tokens: Sequence[int]) -> None:
        """Go on by the tokens that the answer got; an end token is the last one.

        Raises MatcherFailed for a token that the grammar refuses, which the masks have left out.
        """
        if self._ended and tokens:
            raise self._refusal("a token was drawn behind the end of its answer")
        if not self._are_rows(tokens):
            raise self._refusal(f"a token was drawn that is none of {self._rows}")
        body = self._body(tokens)
        known = self._take_back(body)
        self._state.consume_tokens(body[known:])
        self._require_state()
        self._newest.extend(body)
        if len(body) == len(tokens):
            return
        # the library is not told of the end: where nothing else may follow it takes it for an error
        if len(body) + 1 < len(tokens) or not self.may_end():
            raise self._refusal("an end was drawn where the answer is not complete, or not as its last")
        self._ended = True

    def count_allowed(self, draft: Sequence[int]) -> int:
        """How many tokens of a draft may follow, to the first refused one or with the one that ends."""
        if self._ended:
            return 0
        if not draft:
            self._require_state()
            return 0
        if not self._are_rows(draft):
            # an id without a row would put the library into its error state, for good
            draft = [*takewhile(self._is_row, draft)]
        body = self._body(draft)
        end = list(draft[len(body) : len(body) + 1])
        # of an end alone the library says no where nothing else may follow
        count = self._here.validate_tokens([*body, *end]) if body else int(bool(end) and self.may_end())
        self._require_state()
        return count

    def may_end_behind(self, tokens: Sequence[int]) -> bool:
        """Whether these may follow, and what was accepted is valid with them."""
        end = next(iter(self._end_tokens))
        return self.count_allowed([*tokens, end]) == len(tokens) + 1

    def forced(self) -> list[int]:
        """Tokens that must follow whatever is drawn, spelled as the tokenizer would; often none."""
        tokens = [] if self._ended else self._here.compute_ff_tokens()
        self._require_state()
        return tokens

    def allowed(self) -> bytes:
        """What may follow: bit t % 8 of byte t // 8 is token t."""
        mask = self._here.compute_bitmask()
        self._require_state()
        return mask

    def with_masks_of(self, draft: Sequence[int]) -> tuple[LLMatcher, list[int]]:
        """The library's state and the tokens of `draft` behind which a token will be drawn: for `MaskFiller`.

        Raises MatcherFailed where the draft is not allowed, or the answer has ended.
        """
        if self._ended or self.count_allowed(draft) < len(draft):
            raise MatcherFailed("grammar: masks were asked for behind what it refuses; cut the draft first")
        return self._here, self._body(draft)

    def expect(self, draft: Sequence[int]) -> None:
        """The answer may get these tokens next, which may follow: `accept` has less to do if it does.

        For a while in which there is time. Whatever else is asked first forgets them again.
        """
        if self.failed or self._ended:
            return
        body = self._body(draft)
        self._here.consume_tokens(body)
        self._ahead = body

    @property
    def _here(self) -> LLMatcher:
        """The library's state where the answer stands."""
        self._take_back(())
        return self._state

    def _take_back(self, tokens: Sequence[int]) -> int:
        """Nothing is ahead any more but the first of `tokens` that were: returns how many."""
        if not self._ahead:
            return 0
        ahead, self._ahead = self._ahead, []
        same = len([*takewhile(lambda pair: pair[0] == pair[1], zip(ahead, tokens, strict=False))])
        self._state.rollback(len(ahead) - same)
        return same

    def _body(self, tokens: Sequence[int]) -> list[int]:
        """The tokens before the first that ends an answer."""
        # asked of every answer in every pass, and nearly none has an end
        if self._end_tokens.isdisjoint(tokens):
            return list(tokens)
        return [*takewhile(lambda token: token not in self._end_tokens, tokens)]

    def _are_rows(self, tokens: Sequence[int]) -> bool:
        return not tokens or (self._is_row(min(tokens)) and self._is_row(max(tokens)))

    def _is_row(self, token: int) -> bool:
        return 0 <= token < self._rows

    def _refusal(self, what: str) -> MatcherFailed:
        """The error for tokens that the masks have left out; nothing can go on from it."""
        self._refused = True
        return MatcherFailed(f"grammar: {what}; send the job again")

    def _require_state(self) -> None:
        if not self.failed:
            return
        if is_over_limit(self._state):
            raise GrammarTooComplex(
                "grammar: it takes more work than one token of an answer may; ask for a simpler shape"
            )
        raise MatcherFailed("grammar: its state was lost in the middle of an answer; send the job again")
