"""Where one answer stands in its shape: thinking, what leads in, the grammar, an ending that is due.

Knows no torch, no logits and no other answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile

from sparkle.errors import GrammarError, MatcherFailed
from sparkle.text.known_ways import KnownWays
from sparkle.text.matcher import Matcher
from sparkle.text.shape import Shape

SPARE_TOKENS = 32
"""An ending is looked for so many tokens before it is due: closing what one token opens may take some."""
GROWTH_TOKENS = 4
"""By so many an ending is taken to grow with each token, at most: several brackets are one token."""
RESERVED_TOKENS = 256
"""With no more left than these, no token is taken behind which no ending is found."""

FindEnding = Callable[[Matcher, int, KnownWays], Sequence[int] | None]
"""(where an answer stands, tokens, what its schema tells) -> at most so many tokens that make it valid; None
for none found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowed:
    """What may be drawn at the answer's end, and behind each token of a draft: a row each.

    The rows of these three come one behind the other; behind a refused token there is none.
    """

    free: int
    """Rows in which all but the model's end tokens may be drawn."""

    given: tuple[int, ...]
    """Of each further row the only token."""

    grammar: tuple[int, ...] | None
    """Then one row of the grammar, and one behind each of these tokens but an end; None: no such row."""


class ShapedAnswer:
    """Moved on by `accept`, and by `settle` where its ending is due. Where its grammar's state is lost, calls
    raise MatcherFailed or GrammarTooComplex.
    """

    def __init__(
        self,
        shape: Shape,
        *,
        rows: int,
        end_tokens: Sequence[int],
        max_tokens: int,
        find_ending: FindEnding,
    ) -> None:
        """`rows` and `end_tokens`: of the vocabulary that the grammar was compiled for; `max_tokens`: the
        answer's at most, an end token among them.
        """
        self.matcher = Matcher(shape.compiled, rows=rows, end_tokens=end_tokens)
        """Where it stands in its grammar: at the beginning until that has begun."""
        self._end_tokens = tuple(end_tokens)
        self._begins_after = shape.begins_after
        # tokens that must come next: those in front of the grammar, or an ending
        self._given = shape.lead_in
        self._ending = False
        self._left_tokens = max_tokens
        self._find_ending = find_ending if shape.complete else None
        self._known = shape.known
        # what is left when an ending is to be looked for again
        self._due_tokens = max_tokens
        # the part of the one found last that its grammar sees; None before the first
        self._found: tuple[int, ...] | None = None

    @property
    def failed(self) -> bool:
        """Whether the grammar's state is lost."""
        return self.matcher.failed

    @property
    def ended(self) -> bool:
        """Whether it is complete, and an end token was accepted."""
        return self.matcher.ended or (self._ending and not self._given)

    @property
    def _only_grammar(self) -> bool:
        """Whether all that comes is the grammar's, as in most passes: their host has no time to lose."""
        return self._begins_after is None and not self._given and not self._ending

    def accept(self, tokens: Sequence[int]) -> None:
        """Go on by the tokens that the answer got in a pass, or had got before it came here."""
        if self._only_grammar:
            self._left_tokens -= len(tokens)
            if tokens:
                self.matcher.accept(tokens)
            return
        free, given, rest = self._split(tokens)
        if any(token in self._end_tokens for token in free):
            raise MatcherFailed("shape: an answer ended before its shape began; send the job again")
        if given != self._given[: len(given)] or (self._ending and len(given) < len(tokens)):
            raise MatcherFailed("shape: a token was drawn where another had to be; send the job again")
        if free and free[-1] == self._begins_after:
            self._begins_after = None
        self._given = self._given[len(given) :]
        self._left_tokens -= len(tokens)
        if rest:
            self.matcher.accept(rest)

    def count_allowed(self, draft: Sequence[int]) -> int:
        """How many tokens of a draft may follow, to the first refused one or with the one that ends."""
        if self._only_grammar:
            return self.matcher.count_allowed(draft)
        free, given, rest = self._split(draft)
        sound = len(list(takewhile(lambda token: token not in self._end_tokens, free)))
        if sound < len(free):
            return sound
        right = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(given, self._given, strict=False))))
        if right < len(given) or rest is None:
            return sound + right
        return sound + right + self.matcher.count_allowed(rest)

    def allowed(self, draft: Sequence[int]) -> Allowed:
        """What may be drawn along a draft, as far as the draft may follow."""
        free, given, rest = self._split(draft[: self.count_allowed(draft)])
        if self._begins_after is not None and free[-1:] != (self._begins_after,):
            return Allowed(free=1 + len(free), given=(), grammar=None)
        # a row of each given token in front of which the draft comes
        return Allowed(free=len(free), given=self._given[: 1 + len(given)], grammar=rest)

    def forced(self) -> list[int]:
        """Tokens that come next whatever is drawn, or are the likeliest spelling of what must; often none."""
        if self._begins_after is not None or self.ended:
            return []
        if self._ending:
            return [*self._given]
        run = [*self._given, *self.matcher.forced()]
        return run or ([self._end_tokens[0]] if self.matcher.must_end() else [])

    def settle(self, tokens: Sequence[int]) -> int:
        """How many of these tokens may be taken, at least one: behind the next one it could not be completed
        with what is left.

        0 where already the first one leaves no room: then an ending is given from here on, and they are to be
        drawn again. All of them where the shape need not be completed, or has no room to be any more.
        """
        if self._find_ending is None or self._ending or self.failed or self.ended:
            return len(tokens)
        for count in range(1, 1 + len(tokens)):
            left = self._left_tokens - count
            if left > self._due_tokens:
                continue
            found = self._ending_behind(tokens[:count], left)
            if found is not None:
                near = len(found) + SPARE_TOKENS
                # as far off as it takes to come near where it grows as much as it may
                self._due_tokens = max(near, (near + GROWTH_TOKENS * left) // (1 + GROWTH_TOKENS))
                continue
            if left <= RESERVED_TOKENS:
                if count > 1:
                    # the next pass draws this one once more
                    return count - 1
                ending = self._ending_behind((), self._left_tokens)
                if ending is not None:
                    self._given, self._ending, self._begins_after = ending, True, None
                    return 0
            # there may be one when the answer has come further
            self._due_tokens = left // 2
        return len(tokens)

    def _ending_behind(self, tokens: Sequence[int], most: int) -> tuple[int, ...] | None:
        """At most so many tokens that complete it behind these, an end token the last; none are needed behind
        an end."""
        assert self._find_ending is not None, "it is to be completed"
        free, given, rest = self._split(tokens)
        if rest and rest[-1] in self._end_tokens:
            return ()
        first = list[int]()
        if self._begins_after is not None and free[-1:] != (self._begins_after,):
            first.append(self._begins_after)
        first += self._given[len(given) :]
        state = self.matcher.copy()
        try:
            state.accept(rest or ())
            found = self._found_behind(state, most - len(first) - 1)
        except GrammarError:
            # what is wrong with it is told when it is accepted
            return None
        return None if found is None else (*first, *found, self._end_tokens[0])

    def _found_behind(self, state: Matcher, most: int) -> tuple[int, ...] | None:
        """The ending found last where it still is one, or what is left of it: searching takes a while."""
        assert self._find_ending is not None, "it is to be completed"
        known_here = () if self._found is None else (self._found, self._found[1:])
        for known in known_here:
            if len(known) <= most and state.count_allowed(known) == len(known):
                ahead = state.copy()
                ahead.accept(known)
                if ahead.may_end():
                    self._found = known
                    return known
        found = self._find_ending(state, most, self._known)
        if found is not None:
            # else the last one stays, which is that of the place in front of this
            self._found = tuple(found)
        return None if found is None else self._found

    def _split(
        self, tokens: Sequence[int]
    ) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...] | None]:
        """Those before the shape, those in places of given ones, the grammar's; None: it has not begun."""
        free, rest = tuple[int, ...](), tuple(tokens)
        if self._begins_after is not None:
            if self._begins_after not in rest:
                return rest, (), None
            count = 1 + rest.index(self._begins_after)
            free, rest = rest[:count], rest[count:]
        given, rest = rest[: len(self._given)], rest[len(self._given) :]
        return free, given, rest if len(given) == len(self._given) and not self._ending else None
